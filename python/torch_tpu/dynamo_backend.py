"""torch.compile(backend="tpu"): AOTAutograd's graphs, recorded as eager operations are.

A graph is run once over placeholders and what it records is kept (torch_tpu._C.CompiledGraph); calls replay that. So
lowerings, fragments, cache and tiers are those of eager mode, and there is no second list of operators. Nodes that a
capture can't hold (tensors of the CPU or of several devices, results whose size depends on data, control flow,
collectives) stay Python: the graph is split around them, and they run operation by operation. A capture is of one
device. The branches and bodies of control flow are graphs of their own, compiled alike: Python chooses and counts, no
more.

options={"wait": True}: the first call with inputs of a kind returns when all it needs is compiled.
"""

import operator

import torch
from torch._dynamo import graph_bytecode_inputs
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition
from torch._guards import TracingContext
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, is_nested_int
from torch.utils._pytree import tree_leaves

from torch_tpu import _C, _flex_attention
from torch_tpu._numbers import DECOMPOSITIONS

# Their plain implementations call their graphs with ordinary tensors, so that anything callable may stand in.
_CONTROL_FLOW = {"cond", "while_loop", "while_loop_stack_output", "scan", "map_impl", "invoke_subgraph"}

_BY_PLACE = {torch.ops.aten.as_strided, torch.ops.aten.as_strided_copy, torch.ops.aten.as_strided_scatter}


def tpu(gm, example_inputs, *, mode=None, options=None):
    """The backend, found by the entry point `torch_dynamo_backends`. Torch's modes ask for what is done anyway."""
    options = dict(options or {})
    wait = options.pop("wait", False)
    if options:
        raise ValueError(f"torch.compile(backend='tpu') has no options {sorted(options)}; it has 'wait'")

    def compiler(graph, _):
        if _to_be_saved():
            from torch_tpu import _saved_graphs

            return _saved_graphs.SavedGraph.of(graph, wait)
        return compiled(graph, wait)

    def forward_compiler(graph, inputs):
        _donate_nothing()
        return compiler(graph, inputs)

    backend = aot_autograd(
        fw_compiler=forward_compiler,
        bw_compiler=compiler,
        inference_compiler=compiler,
        decompositions=DECOMPOSITIONS,
        partition_fn=_partition,
        keep_inference_input_mutations=True,
    )
    run = backend(gm, example_inputs)
    _store_no_stream_unless_named(gm)
    return run


def _partition(joint, inputs, **options):
    """PyTorch's, but that backward does nothing again that it doesn't use: what the forward did to streams and events
    has no tensors for operands, and would be repeated with streams that are gone."""
    forward, backward = default_partition(joint, inputs, **options)
    done = {node.name for node in forward.graph.nodes if node.op not in ("placeholder", "output")}
    for node in reversed(backward.graph.nodes):
        if node.op != "placeholder" and node.name in done and not node.users:
            backward.graph.erase_node(node)
    backward.recompile()
    return forward, backward


def _to_be_saved():
    return functorch_config.bundled_autograd_cache or torch._dynamo.config.caching_precompile


def _donate_nothing():
    """Launches find out by themselves which buffers nobody needs any more, so that retain_graph=True stays possible.
    (AOTAutograd refuses it for what was compiled with the setting off and runs with it on, so the setting stays.)"""
    metadata = TracingContext.get().fw_metadata
    if metadata.bw_donated_idxs:
        metadata.bw_donated_idxs.clear()  # a list that AOTAutograd's other descriptions of the graph share


def _store_no_stream_unless_named(gm):
    """Dynamo has every call begin with storing the current stream, in case that the graph names it: a sixth of a small
    call. Where it doesn't, there is nothing to store (Dynamo looks once the backend has returned)."""
    registered = graph_bytecode_inputs.index_to_bytecode_constructor
    graphs = [m.graph for m in gm.modules() if isinstance(m, torch.fx.GraphModule)]
    if list(registered) == [graph_bytecode_inputs.CURRENT_STREAM_INDEX]:
        if not any(_names_stream(node) for graph in graphs for node in graph.nodes):
            registered.clear()


def _names_stream(node):
    target = node.target
    if target is graph_bytecode_inputs.get_external_object_by_index or str(target).startswith("streams."):
        return True
    return "stream" in node.meta.get("custom", {})


def compiled(gm, wait):
    """The graph as a function of the list of its inputs, which it empties."""
    _flex_attention.spell_out(gm)
    if _hold_to_traced_strides(gm.graph):
        gm.recompile()
    for name in _regions(gm):
        setattr(gm, name, _Region(getattr(gm, name), wait))
    parts = _parts(gm.graph)
    if len(parts) > 1 or (parts and any(map(_goes_around, gm.graph.find_nodes(op="placeholder")))):
        return _Split(gm, parts, wait)
    if parts and parts[0][0] is not None:
        return _captured(gm, wait, parts[0][0])

    def call(inputs):
        arguments = tuple(inputs)
        inputs.clear()
        return gm(*arguments)

    call._boxed_call = True
    return call


def _hold_to_traced_strides(graph):
    """Views and numbers in the graph are of the strides that tracing found. For some operators they aren't those of any
    kernel (batch_norm of transposed values), so results in an order of their own are held to it. Whether any are."""
    held = False
    for node in list(graph.nodes):
        value = node.meta.get("val")
        call = node.args[0] if node.target is operator.getitem else node
        if not isinstance(value, torch.Tensor) or not isinstance(call.target, torch._ops.OpOverload):
            continue
        order = _order(value)
        aliases = any(r.alias_info is not None for r in call.target._schema.returns)
        plain = all(map(_in_order, [value, *_tensors([call.args, call.kwargs])]))
        if aliases or plain or order is None or value.device.type != "tpu":
            continue
        with graph.inserting_after(node):
            there = graph.call_function(_in_that_order, (node, order))
        there.meta = dict(node.meta)
        node.replace_all_uses_with(there, delete_user_cb=lambda user, there=there: user is not there)
        held = True
    return held


def _hints(numbers):
    return [n.node.hint if isinstance(n, torch.SymInt) else n for n in numbers]


def _in_order(value):
    strides = [n for size, n in zip(_hints(value.shape), _hints(value.stride()), strict=True) if size != 1]
    return None in strides or strides == sorted(strides, reverse=True)


def _order(value):
    """The dimensions from the outermost to the innermost; None of values with gaps or overlaps, or of unknown size."""
    sizes, strides = _hints(value.shape), _hints(value.stride())
    if None in sizes or None in strides:
        return None
    order = sorted(range(len(sizes)), key=lambda d: -strides[d])
    return order if [strides[d] for d in order if sizes[d] != 1] == _dense(sizes, order) else None


def _dense(sizes, order):
    """The strides of dimensions of more than one element."""
    strides, elements = [], 1
    for d in reversed(order):
        if sizes[d] != 1:
            strides.append(elements)
            elements *= sizes[d]
    return strides[::-1]


def _in_that_order(value, order):
    if [value.stride(d) for d in order if value.size(d) != 1] == _dense(value.shape, order):
        return value
    back = sorted(range(len(order)), key=order.__getitem__)
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _captured(gm, wait, device):
    graph = _C.CompiledGraph(gm, wait, device)
    graph._boxed_call = True
    return graph


def _goes_around(node):
    """Whether it is an input that no capture takes and no call does (what carries sizes alone for compiled autograd and
    nested tensors), or a number of the CPU that is a result, too. Not asked of numbers that are no ragged size."""
    value = node.meta.get("val")
    returned = [user.op == "output" for user in node.users]
    if isinstance(value, torch.SymInt):
        return is_nested_int(value.node.hint) and all(returned)
    if not isinstance(value, torch.Tensor) or value.device.type == "tpu":
        return False
    return all(returned) if value.dim() > 0 else any(returned)


class _Split:
    """A graph of several parts, captured and Python's, run one after the other."""

    def __init__(self, gm, parts, wait):
        self._boxed_call = True  # of the instance: what wraps it copies its dictionary
        nodes = gm.graph.nodes
        self._inputs = [n for n in nodes if n.op == "placeholder"]
        self._output = next(n for n in nodes if n.op == "output")
        last = {n: len(parts) for n in self._output.all_input_nodes}
        for number, (_, members) in reversed(list(enumerate(parts))):
            for used in [u for n in members for u in n.all_input_nodes]:
                last.setdefault(used, number)
        self._parts = []
        for number, (device, members) in enumerate(parts):
            inside = set(members)
            needed = [u for n in members for u in n.all_input_nodes if u not in inside and u.op != "get_attr"]
            inputs = list(dict.fromkeys(needed))
            outputs = [n for n in members if last.get(n, number) > number]
            graph, copies = torch.fx.Graph(), {}
            for n in inputs:
                copies[n] = graph.placeholder(n.name)
            for n in members:
                for u in n.all_input_nodes:
                    if u.op == "get_attr" and u not in copies:
                        copies[u] = graph.node_copy(u)
                copies[n] = graph.node_copy(n, copies.__getitem__)
            graph.output(tuple(copies[n] for n in outputs))
            part = torch.fx.GraphModule(gm, graph)
            done = [n for n in inputs if last[n] == number]
            captured = device is not None
            run = _captured(part, wait, device) if captured else part
            self._parts.append((run, captured, inputs, outputs, done))
        self._constants = {n: getattr(gm, n.target) for n in self._output.all_input_nodes if n.op == "get_attr"}

    def __call__(self, inputs):
        values = dict(zip(self._inputs, inputs, strict=True)) | self._constants
        inputs.clear()
        for part, captured, needed, made, done in self._parts:
            arguments = [values[n] for n in needed]
            for n in done:
                del values[n]
            results = part(arguments) if captured else part(*arguments)
            values.update(zip(made, results, strict=True))
        return torch.fx.node.map_arg(self._output.args[0], values.__getitem__)


class _Region(torch.nn.Module):
    """A branch, body or condition of a control flow operator, compiled."""

    def __init__(self, gm, wait):
        super().__init__()
        self._alone = isinstance(gm.graph.output_node().args[0], torch.fx.Node)  # a result, as conditions give it
        if self._alone:
            graph = torch.fx.Graph()
            graph.output((graph.graph_copy(gm.graph, {}),))
            gm = torch.fx.GraphModule(gm, graph)
        self._run = compiled(gm, wait)

    def forward(self, *inputs):
        results = self._run(list(inputs))
        return results[0] if self._alone else tuple(results)


def _regions(gm):
    """The names of the graphs that only control flow operators of `gm` call."""
    uses = {n.target: [u.target for u in n.users] for n in gm.graph.nodes if n.op == "get_attr"}
    return [
        name
        for name, module in gm.named_children()
        if isinstance(module, torch.fx.GraphModule) and all(map(_is_control_flow, uses.get(name, [None])))
    ]


def _is_control_flow(target):
    return isinstance(target, torch._ops.HigherOrderOperator) and target.name() in _CONTROL_FLOW


def _parts(graph):
    """The nodes that are calls in order, as a list of (device to capture for, or None; nodes): neighbours are together.

    What the CPU computes from the CPU's inputs comes first, so that it splits nothing; it draws in the program's order.
    """
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    tensors = {node: (_tensors(node), _tensors([node.args, node.kwargs])) for node in calls}  # made, taken
    devices = {
        n: {t.device.index for t in made + taken if t.device.type == "tpu"} for n, (made, taken) in tensors.items()
    }
    home = next((min(found) for found in devices.values() if found), 0)  # of nodes without tensors
    kinds = {}
    for node in calls:
        of_python = node.target is operator.getitem and kinds.get(node.args[0], home) is None
        stays = _stays_python(node, *tensors[node]) or of_python or len(devices[node]) > 1
        kinds[node] = None if stays else min(devices[node], default=home)
    if len(set(kinds.values())) == 1 and None not in kinds.values():
        return [(home, calls)]
    first, late, drawn = [], set(), set()
    for node in calls:
        draws = _draws(node, tensors[node][0])
        inputs_wait = not late.isdisjoint(node.all_input_nodes)
        if kinds[node] is not None or _writes(node) or inputs_wait or not drawn.isdisjoint(draws):
            late.add(node)
            drawn |= draws
        else:
            first.append(node)
    parts = [(None, first)] if first else []
    for node in calls:
        if node not in late:
            continue
        if not parts or (parts[-1][0] != kinds[node] and not _is_neutral(node)):
            parts.append((kinds[node], []))
        parts[-1][1].append(node)
    return parts


def _tensors(thing):
    """The tensors (fake ones, from tracing) that nodes in `thing` stand for."""
    found = []
    for leaf in tree_leaves(thing):
        value = leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else leaf
        found += [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
    return found


def _is_neutral(node):
    """Arithmetic of sizes, and parts of a tuple: belongs to whichever part it stands in."""
    return not isinstance(node.target, torch._ops.OperatorBase) and not _tensors(node.meta.get("val"))


def _writes(node):
    """What a library's operator returns nothing for, it does to its operands, whatever its schema says."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    schema = node.target._schema
    return schema.is_mutable or (not schema.returns and node.target.namespace not in ("aten", "prims"))


def _draws(node, made):
    """Of which devices' generators the call may draw: a library's operators and what regions hold aren't known."""
    if not isinstance(node.target, torch._ops.OperatorBase):
        return set()
    if isinstance(node.target, torch._ops.HigherOrderOperator) or node.target.namespace not in ("aten", "prims"):
        return {"cpu", "tpu"}
    return {t.device.type for t in made} if torch.Tag.nondeterministic_seeded in node.target.tags else set()


def _depends_on_data(node):
    """Whether the call reads data to know its result, or how large that is (`x[mask]`, but not `x[integers]`)."""
    if torch.Tag.data_dependent_output in node.target.tags:
        return True
    if torch.Tag.dynamic_output_shape not in node.target.tags:
        return False
    known = set().union(*(free_unbacked_symbols(t) for t in _tensors([node.args, node.kwargs])))
    return any(free_unbacked_symbols(t) - known for t in _tensors(node))


def _argument(node, name):
    """The call's argument of that name; None where there is no such one, or it is left at its default."""
    names = [a.name for a in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return given.get(name)


def _counts_from_storage(node):
    """Whether it says where it reads or writes an input by a place in that one's storage."""
    if node.target.overloadpacket not in _BY_PLACE or _argument(node, "storage_offset") is None:
        return False
    x = node.args[0]
    while x.op == "call_function" and _lies_as_its_source(x.target):
        x = x.args[0]
    return x.op == "placeholder"


def _lies_as_its_source(target):
    if target in (operator.getitem, torch.ops.aten.as_strided_scatter.default):
        return True
    return isinstance(target, torch._ops.OpOverload) and any(r.alias_info for r in target._schema.returns)


def _stays_python(node, made, operands):
    target = node.target
    if not isinstance(target, torch._ops.OperatorBase):
        return any(t.device.type != "tpu" for t in made + operands)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target is not torch._prims.rng_prims.graphsafe_run_with_rng_state
    if target.namespace not in ("aten", "prims") or _depends_on_data(node):
        return True
    if target.overloadpacket is torch.ops.aten.set_ or _counts_from_storage(node):
        return True  # a capture knows of what inputs hold, and not which storages they are over, nor where in them
    if operands and not target._schema.returns and not target._schema.is_mutable:
        return True  # assertions read what they assert
    if _argument(node, "check_errors"):
        return True
    if any(t.device.type != "tpu" for t in made):
        return True
    hosts = [t for t in operands if t.device.type != "tpu"]
    if len(hosts) == len(operands):
        return bool(hosts)
    in_lists = [a for a in [*node.args, *node.kwargs.values()] if isinstance(a, list | tuple)]
    return any(t.dim() > 0 for t in hosts) or any(t.device.type != "tpu" for t in _tensors(in_lists))
