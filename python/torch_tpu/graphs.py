"""torch.tpu: graphs, with the names of torch.cuda. A graph is PyTorch's own `torch.accelerator.Graph`."""

import itertools

import torch
from torch.utils import _pytree

from torch_tpu import _C
from torch_tpu.streams import StreamContext


class TPUGraph(torch.accelerator.Graph):
    """Operations captured once, and replayed without Python and without PyTorch's dispatcher.

    Nothing runs while they are captured, and no value can be read. A replay takes what the tensors that were read hold
    then, and writes those that were written; numbers and shapes are those of the capture, random numbers the
    generator's next, and its state can be set to one that it had in the capture (activation checkpoints do so).
    `capture_error_mode` is taken and means nothing. See torch.cuda.CUDAGraph.
    """

    def capture_begin(self, pool=None, capture_error_mode=None):
        if pool is not None:
            self.graph_pool = pool
        super().capture_begin()

    def register_generator_state(self, generator):
        """Takes any generator and means nothing: replays go on from the state of those that the capture drew from."""


def graph_pool_handle():
    """A name for memory that graphs share. Here it is but a name: values are counted, so graphs always share."""
    return (next(_pools), 0)


_pools = itertools.count(1)


def is_current_stream_capturing():
    """Whether this thread captures a graph on its current stream."""
    return _C.is_capturing()


class graph:
    """Captures what its block records, on the current stream or on `stream`, as `graph`. See torch.cuda.graph."""

    def __init__(self, tpu_graph, pool=None, stream=None, capture_error_mode="global"):
        self.tpu_graph, self.stream_context = tpu_graph, StreamContext(stream)
        if pool is not None:
            tpu_graph.graph_pool = pool

    def __enter__(self):
        self.stream_context.__enter__()
        try:
            self.tpu_graph.__enter__()
        except BaseException:
            self.stream_context.__exit__()
            raise

    def __exit__(self, *exception):
        try:
            self.tpu_graph.__exit__(*exception)
        finally:
            self.stream_context.__exit__(*exception)


def make_graphed_callables(callables, sample_args, num_warmup_iters=3, allow_unused_input=False, pool=None):
    """Callables (functions or modules) whose forward and backward are replays of graphs, for training.

    `sample_args`: of each callable a tuple of tensors (or of containers of them) of the sizes, dtypes and requires_grad
    that it will be called with; for one callable the tuple itself. Modules are changed in place: in the training mode
    that they have now they replay, in the other they run as they did. A backward is that of the latest call. Raises
    RuntimeError where modules have hooks or buffers that require gradients, and where autocast keeps what it casts.
    Activation checkpoints inside need preserve_rng_state=False: forward and backward are graphs of their own.
    See torch.cuda.make_graphed_callables.
    """
    if torch.is_autocast_enabled("tpu") and torch.is_autocast_cache_enabled():
        raise RuntimeError("Replays would take weights as they were cast before: autocast needs cache_enabled=False.")
    if not isinstance(callables, tuple):
        return _graphed(callables, sample_args, num_warmup_iters, allow_unused_input, pool)
    return tuple(
        _graphed(one, args, num_warmup_iters, allow_unused_input, pool)
        for one, args in zip(callables, sample_args, strict=True)
    )


def _graphed(call, sample_args, num_warmup_iters, allow_unused_input, pool):
    module = call if isinstance(call, torch.nn.Module) else None
    if module is not None:
        hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
        if any(hooks):
            raise RuntimeError("Modules must not have hooks when they are passed to make_graphed_callables.")
        if any(buffer.requires_grad for buffer in module.buffers()):
            raise RuntimeError("Buffers of modules passed to make_graphed_callables must not require gradients.")
    sample, sample_spec = _pytree.tree_flatten(tuple(sample_args))
    if not all(isinstance(x, torch.Tensor) for x in sample):
        raise TypeError("the arguments of what is graphed must be tensors")
    inputs = tuple(sample) + (tuple(module.parameters()) if module is not None else ())
    wants = [x for x in inputs if x.requires_grad]

    def gradients(outputs, given):
        return torch.autograd.grad(outputs, wants, given, only_inputs=True, allow_unused=allow_unused_input)

    for _ in range(num_warmup_iters):
        results = [x for x in _pytree.tree_leaves(call(*sample_args)) if x.requires_grad]
        if results and wants:
            gradients(results, [torch.empty_like(x) for x in results])
        del results
    forward = TPUGraph()
    with graph(forward, pool):
        outputs, output_spec = _pytree.tree_flatten(call(*sample_args))
    differentiable = [x for x in outputs if x.requires_grad]
    given = [torch.empty_like(x) if x.requires_grad else None for x in outputs]
    backward, made = TPUGraph(), ()
    if differentiable and wants:
        with graph(backward, forward.pool()):
            made = gradients(differentiable, [g for g in given if g is not None])
    made = iter(made)
    grads = [next(made, None) if x.requires_grad else None for x in inputs]
    fixed = [x.detach() for x in outputs]

    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            for mine, x in zip(sample, arguments, strict=False):  # parameters stay where they are
                if mine.data_ptr() != x.data_ptr():
                    mine.copy_(x)
                elif mine.stride() != x.stride():
                    mine.copy_(x.clone())
            forward.replay()
            results = tuple(x.clone() for x in fixed)  # of the values, which is no copy
            ctx.mark_non_differentiable(*(r for r, x in zip(results, outputs, strict=True) if not x.requires_grad))
            return results

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, *arguments):
            for mine, x in zip(given, arguments, strict=True):
                if mine is not None:
                    mine.copy_(x)
            backward.replay()
            return tuple(g if g is None else g.clone() for g in grads)

    def replayed(*arguments):
        flat, spec = _pytree.tree_flatten(arguments)
        if spec != sample_spec:
            raise TypeError(f"graphed for arguments {sample_spec}, called with {spec}")
        for mine, x in zip(sample, flat, strict=True):
            if not isinstance(x, torch.Tensor) or x.shape != mine.shape or x.dtype != mine.dtype:
                raise ValueError(f"graphed for a tensor of {mine.dtype}{list(mine.shape)}, called with {x!r:.80}")
        return _pytree.tree_unflatten(Graphed.apply(*flat, *inputs[len(sample) :]), output_spec)

    if module is None:
        return replayed
    original, training = module.forward, module.training

    def forward_of_mode(*arguments, **options):
        return (replayed if module.training == training else original)(*arguments, **options)

    module.forward = forward_of_mode
    return module
