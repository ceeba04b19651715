"""The pauses of the garbage collector while a node's state grows."""

import subprocess
import sys

CHILD = """
import gc
from tierlog.base.process_limits import tune_interpreter

visited = {0: 0, 1: 0, 2: 0}

def note(phase, about):
    if phase == "start":
        generation = about["generation"]
        young = sum(len(gc.get_objects(each)) for each in range(generation + 1))
        visited[generation] = max(visited[generation], young)

gc.collect()
gc.freeze()
tune_interpreter()
gc.callbacks.append(note)
state = [{"member": [number]} for number in range(300_000)]
print(visited[0], visited[1], visited[2])
"""


def test_a_collection_visits_few_objects_while_a_million_are_added() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    youngest, second, oldest = map(int, done.stdout.split())
    assert 0 < youngest < 7_000
    assert 0 < second < 18_000
    assert oldest == 0
