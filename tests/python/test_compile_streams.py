"""torch.compile of functions that name streams, events and devices."""

import pytest
import torch
from helpers import compiled


@pytest.fixture
def streams_stored(monkeypatch):
    """How often calls have stored the current stream for their graphs."""
    from torch._dynamo import graph_bytecode_inputs

    stored, original = [], graph_bytecode_inputs.store_user_object_weakrefs

    def store(*streams):
        stored.append(streams)
        original(*streams)

    monkeypatch.setattr(graph_bytecode_inputs, "store_user_object_weakrefs", store)
    return stored


def test_calls_store_no_stream(streams_stored):
    def trained(x):
        y = (x * 2).sin()
        y.sum().backward()
        return y

    compiled(lambda x: (x * 2).sin())(torch.randn(4, device="tpu"))
    for _ in range(2):
        compiled(trained)(torch.randn(4, device="tpu", requires_grad=True))
    assert not streams_stored


def on_the_current_stream(x):
    with torch.accelerator.current_stream():
        y = x + 1
    return y * 2


def synchronized(x):
    y = x + 1
    torch.accelerator.current_stream().synchronize()
    return y * 2


@pytest.mark.parametrize("function", [on_the_current_stream, synchronized])
def test_calls_store_the_stream_that_a_graph_names(streams_stored, function):
    there = compiled(function)
    for calls in range(1, 4):
        x = torch.ones(4, device="tpu", requires_grad=True)
        y = there(x)
        y.sum().backward()
        assert len(streams_stored) == calls
        assert y.tolist() == [4] * 4 and x.grad.tolist() == [2] * 4


def test_compiled_functions_return_the_current_stream():
    y, stream = compiled(lambda x: (x + 1, torch.accelerator.current_stream()))(torch.ones(4, device="tpu"))
    assert y.tolist() == [2] * 4 and stream == torch.accelerator.current_stream()


def beside(x):
    stream = torch.tpu.Stream()
    stream.wait_stream(torch.tpu.current_stream())
    with torch.tpu.stream(stream):
        y = x + 1
    torch.tpu.current_stream().wait_stream(stream)
    return y * 2


def after_an_event(x):
    event = torch.tpu.Event()
    y = x + 1
    event.record()
    event.wait()
    torch.tpu.synchronize()
    torch.tpu.synchronize(x.device)
    return y * 2


def on_the_device(x):
    with torch.tpu.device(x.device), torch.tpu.device("tpu"), torch.tpu.device(None):
        y = x + torch.tpu.current_device() + torch.tpu.is_available()
    return y * 2


def on_no_stream(x):
    with torch.tpu.stream(None), torch.tpu.stream(stream=None):
        y = x + 1
    return y * 2


def on_such_a_machine(x):
    module = torch.get_device_module(x.device)
    says = torch.tpu.is_initialized() and torch.tpu.is_bf16_supported() and len(torch.tpu.get_device_name())
    assert says and x.dtype in torch.tpu.get_amp_supported_dtype() and module.get_device_capability()
    assert module.get_device_properties(x.device).total_memory > 0
    return (x + (module.device_count() == torch.tpu.device_count())) * 2


@pytest.mark.parametrize("function", [beside, after_an_event, on_the_device, on_no_stream, on_such_a_machine])
def test_graphs_do_not_break_on_names_of_torch_tpu(function):
    there = compiled(function, fullgraph=True)
    for _ in range(2):
        x = torch.ones(4, device="tpu", requires_grad=True)
        y = there(x)
        y.sum().backward()
        assert y.tolist() == [4] * 4 and x.grad.tolist() == [2] * 4


def test_a_graph_breaks_where_a_stream_or_a_device_is_current():
    @compiled
    def function(x):
        with torch.tpu.device(0), torch.tpu.stream(stream):
            y = x + 1
            torch._dynamo.graph_break()
            return y * 2, torch.tpu.current_stream()

    stream = torch.tpu.Stream()
    before = torch.tpu.current_stream()
    y, current = function(torch.ones(4, device="tpu"))
    assert current == stream and isinstance(current, torch.tpu.Stream) and torch.tpu.current_stream() == before
    stream.synchronize()
    assert y.tolist() == [4] * 4


def test_streams_that_graphs_return_are_those_of_the_device():
    made, current = compiled(lambda x: (x + 1, torch.tpu.Stream(), torch.tpu.current_stream()), fullgraph=True)(
        torch.ones(4, device="tpu")
    )[1:]
    assert isinstance(made, torch.tpu.Stream) and made != current
    assert isinstance(current, torch.tpu.Stream) and current == torch.tpu.current_stream()
