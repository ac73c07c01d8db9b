// Two processes joined by pipes, for programs that measure between them.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gin::baseline {

// Calls `side(rank, in, out)` as rank 0 here and as rank 1 in a forked process, which sees the end of its pipe when the other
// ends, and dies with it. Both are ended after so many seconds. Returns the exit status of the two.
template <class Side>
int run_pair(Side side, unsigned seconds) {
  int down[2], up[2];
  if (pipe(down) != 0 || pipe(up) != 0) return 1;
  signal(SIGPIPE, SIG_IGN);  // a write to a side that has ended says so
  const pid_t parent = getpid(), child = fork();
  if (child < 0) return 1;
  alarm(seconds);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(down[1]), close(up[0]);
    _exit(getppid() == parent ? side(1, down[0], up[1]) : 1);
  }
  close(down[0]), close(up[1]);
  const int status = side(0, up[0], down[1]);
  close(down[1]), close(up[0]);
  int child_status = 0;
  waitpid(child, &child_status, 0);
  return status ? status : child_status != 0;
}

}  // namespace gin::baseline
