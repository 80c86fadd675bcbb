BUGS = {}
from contextlib import nullcontext


def planted(n):
    return nullcontext()
