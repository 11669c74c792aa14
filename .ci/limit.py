#!/usr/bin/env python3
"""limit.py SECONDS COMMAND...: runs a test program, and ends it when it takes longer.

A test that hangs would otherwise keep everything behind it from being tested. Before it is ended, what it started is
listed. What it left running is ended too, and named: it might hold locks or pipes that the next program waits for.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36


def main():
    seconds, command = int(sys.argv[1]), sys.argv[2:]
    # Orphans become children of this process, so that none is lost sight of.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    program = os.posix_spawnp(command[0], command, os.environ)
    try:
        status = os.waitstatus_to_exitcode(wait_for(program))
    except TimeoutError:
        print(f"\n{command[0]} ended: still running after {seconds} s, with:", flush=True)
        report(descendants())
        status = 124
    signal.alarm(0)
    end_all()
    sys.exit(status if status >= 0 else 128 - status)


def give_up(_number, _frame):
    raise TimeoutError


def wait_for(program):
    """Its status. Orphans are reaped on the way: the first process of a pid namespace cannot end while one of that
    namespace is a zombie."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == program:
            return status


def end_all():
    """Ends what is left, a moment after it could have ended by itself."""
    deadline = time.monotonic() + 5
    while (left := descendants()) and time.monotonic() < deadline:
        reap()
        time.sleep(0.05)
    if left:
        print("left running, and ended:", flush=True)
        report(left)
    deadline = time.monotonic() + 20
    while left and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap()
        time.sleep(0.05)
        left = descendants()
    if left:
        print("still there, inside the kernel:", flush=True)
        report(left)


def descendants():
    """The ids of all processes below this one, the dead left out."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stat:
                    state, parent = stat.read().rpartition(") ")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state not in "ZX":
                parents[int(name)] = int(parent)
    below = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        if not more:
            return sorted(below - {os.getpid()})
        below |= more


def report(pids):
    columns = "pid,ppid,etimes,stat,wchan:24,args"
    if pids:
        subprocess.run(["ps", "-o", columns, "-ww", "-L", "-p", ",".join(map(str, pids))])


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


main()
