"""For each line on its input: calls, objects and a collection of garbage, ten times."""
import gc
import sys


class Thing:
    def __init__(self, number):
        self.number = number


def called(number):
    return Thing(number).number


print("ready", flush=True)
for line in sys.stdin:
    for number in range(10):
        called(number)
        gc.collect()
    print("done", flush=True)
sys.exit(7)
