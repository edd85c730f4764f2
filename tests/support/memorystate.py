"""A shard's state as a dict, for logics without a stage around them; and two inputs laid against each other."""

from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.files import Size


class Memory(dict):
    def get(self, asked):
        return {key: self[key] for key in asked if key in self}

    def each(self, asked):
        return list(map(super().get, asked))

    def between(self, start, end):
        return iter(sorted((key, value) for key, value in self.items() if start <= key < end))

    def stretches(self, wanted):
        return [list(self.between(start, end))[:most] for start, end, most in wanted]

    def size(self):
        return Size(len(self), sum(len(key) + len(value) for key, value in self.items()))

    def take(self, changes):
        before = self.size()
        for key, value in changes.items():
            if value is None:
                del self[key]  # a logic removes only what is there
            else:
                self[key] = value
        if isinstance(changes, Delta):
            assert changes.grown(before) == self.size(), "a delta has the size of what it replaces"


def extended(shard, batch, attempt, changes):
    """The chain of a shard with changes by key."""
    return shard.extended(batch, attempt, Delta.of(changes, shard))


def interleaved(inputs, choose):
    """Batches of some inputs, each in its order: how far one is when another comes is chosen."""
    left = [list(each) for each in inputs]
    while any(left):
        part = []
        for queue in left:
            count = choose.randint(0, min(4, len(queue)))
            part += queue[:count]
            del queue[:count]
        yield part
