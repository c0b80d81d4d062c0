"""torch.tpu: generators. Seeding creates no device."""

from torch_tpu import _C
from torch_tpu.devices import _index


class _DefaultGenerators:
    """The default generator of each device, by index."""

    def __len__(self):
        return _C.device_count()

    def __getitem__(self, index):
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} tpu devices")
        return _C.default_generator(index % len(self))

    def __iter__(self):
        return (self[i] for i in range(len(self)))


default_generators = _DefaultGenerators()


def _generator(device="tpu"):
    return _C.default_generator(_index(device, optional=True))


def _get_generator(device):
    """The name under which torch.compile's graphs with random numbers ask for it."""
    return _generator(device)


def manual_seed(seed):
    _generator().manual_seed(int(seed))


def manual_seed_all(seed):
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed():
    """Seeds the current device's generator from the system; returns the seed."""
    return _generator().seed()


def seed_all():
    number = seed()
    manual_seed_all(number)


def initial_seed():
    return _generator().initial_seed()


def get_rng_state(device="tpu"):
    """16 bytes on the CPU: seed, offset."""
    return _generator(device).get_state()


def set_rng_state(new_state, device="tpu"):
    """`new_state`: what get_rng_state gave, on any device: a checkpoint that was loaded to one has it there."""
    # No operation where none is needed: FakeTensorMode refuses real tensors.
    _generator(device).set_state((new_state if new_state.is_cpu else new_state.cpu()).contiguous())


def get_rng_state_all():
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states):
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
