"""`python -m gin.sim -n N [--label] (-m MODULE | PROGRAM) [ARGUMENTS]`: what `gin run` starts for the platform sim."""

from __future__ import annotations

import argparse
import sys

from gin import _core
from gin.config import Config
from gin.errors import Error
from gin.sim.job import Job
from gin.sim.launch import Script, exit_code, run_script, write_errors
from gin.sim.options import simulation_options
from gin.sim.output import Outputs


def main(words: list[str]) -> int:
    """The exit code is that of the first rank that failed, or 0."""
    parser = argparse.ArgumentParser(prog="gin run")
    parser.add_argument("-n", dest="ranks", type=int, required=True)
    parser.add_argument("--label", action="store_true")
    parser.add_argument("-m", dest="module")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    program = given.program[1:] if given.program[:1] == ["--"] else given.program
    try:
        job = Job(given.ranks, simulation_options(Config.from_sources(), given.ranks))
        if given.module is not None:
            script = Script.of_module(given.module, tuple(program))
        else:
            script = Script.of_file(program[0], tuple(program[1:]))
        _core.set_last_words(f"gin run: this was the run of GIN_SEED={job.seed}\n")
        outputs = Outputs(label=given.label)
        try:
            run_script(script, job, outputs)
        finally:
            write_errors(job.places, outputs)
    except Error as error:
        sys.stderr.write(f"gin run: {error}\n")
        return 2
    if job.first_error is None:
        return 0
    code = exit_code(job.first_error)
    if code:
        sys.stderr.write(f"gin run: rank {job.first_error.rank} of {job.size} exited with code {code}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
