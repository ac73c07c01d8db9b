"""The contract as code: every promise of the device API is a case that any backend, platform and wire can be run through.

from gin.conformance import Plan, run, select

for result in run(Plan(select(["order.*"]), backends=("ibrc_proxy",))):
    print(result.case, result.outcome, result.reason)
"""

from gin.conformance.plan import Plan
from gin.conformance.registry import Case, all_cases, case, select
from gin.conformance.results import Result
from gin.conformance.runner import run
from gin.conformance.world import World

__all__ = ["Case", "Plan", "Result", "World", "all_cases", "case", "run", "select"]
