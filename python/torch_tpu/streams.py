"""torch.tpu: streams and events. Both are PyTorch's own classes, made for this device by default."""

import torch

from torch_tpu import _C
from torch_tpu.devices import _index


class _StreamType(type(torch.Stream)):
    def __instancecheck__(cls, instance):
        return isinstance(instance, torch.Stream) and instance.device.type == "tpu"


class Stream(torch.Stream, metaclass=_StreamType):
    """An ordered queue of work on a device; independent of other streams but for events. All have the same priority.

    Those that torch.accelerator and compiled functions give are plain torch.Streams.
    """

    priority = 0

    @staticmethod
    def priority_range():
        """The least and the greatest priority that a stream can be asked for."""
        return 0, 0

    def __new__(cls, device=None, priority=0, **kwargs):
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=torch.device("tpu", _index(device, optional=True)), priority=priority)

    def __repr__(self):
        return f"torch.tpu.Stream(device=tpu:{self.device_index}, stream_id={self.stream_id})"


class _EventType(type(torch.Event)):
    def __instancecheck__(cls, instance):
        return type(instance) is torch.Event and instance.device.type == "tpu"


class Event(torch.Event, metaclass=_EventType):
    """A point in a stream's order, with the time at which the stream reached it.

    Makes plain torch.Events: elapsed_time takes no instance of a subclass.
    """

    def __new__(cls, enable_timing=False, blocking=False, interprocess=False, device=None):
        # The time is always taken; PyTorch asks for the flag before it gives the time out.
        return torch.Event(
            device=torch.device("tpu", _index(device, optional=True)),
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )


def _wrap(stream):
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)


def current_stream(device=None):
    return _wrap(torch.accelerator.current_stream(_index(device, optional=True)))


def default_stream(device=None):
    any_stream = torch.accelerator.current_stream(_index(device, optional=True))
    return Stream(stream_id=0, device_index=any_stream.device_index, device_type=any_stream.device_type)


def set_stream(stream):
    if stream is not None:
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Makes a stream and its device current for the thread. None changes nothing."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        if self.stream is None:
            return None
        self._device = _C.exchange_device(self.stream.device_index)
        self._stream = current_stream(self.stream.device_index)
        set_stream(self.stream)
        return self.stream

    def __exit__(self, *exception):
        if self.stream is not None:
            set_stream(self._stream)
            _C.exchange_device(self._device)
        return False


def stream(stream):
    return StreamContext(stream)
