"""What torch.compile has to know of the device, told when (and only if) the program imports torch._dynamo.

torch registers an interface of its own for the name "tpu" (no f64, complex, half); ours takes its place. Inductor, the
default backend, would generate Pallas for the name "tpu"; graphs with tensors on tpu go to our backend instead.
Importing these modules takes seconds, so this waits for them with an import hook instead of importing them.
"""

import functools
import importlib.abc
import importlib.machinery
import sys


def register_on_import(registrations=None):
    """Calls each function with the module of that name, once (and only if) somebody imports it."""
    waiting = {}
    for name, register in (registrations or _ON_IMPORT).items():
        if name in sys.modules:
            register(sys.modules[name])
        else:
            waiting[name] = register
    if waiting:
        sys.meta_path.insert(0, _Finder(waiting))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, waiting):
        self._waiting = waiting

    def find_spec(self, fullname, path, target=None):
        register = self._waiting.pop(fullname, None)
        if register is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, register)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader, register):
        self._loader, self._register = loader, register

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        self._register(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


def _register_interface(module):
    import torch

    from torch_tpu import tpu

    class TpuInterface(module.DeviceInterface):
        device = tpu.device
        Event = torch.Event
        Stream = torch.Stream

        class Worker:
            set_device = staticmethod(tpu.set_device)
            current_device = staticmethod(tpu.current_device)
            get_device_properties = staticmethod(tpu.get_device_properties)

        current_device = staticmethod(tpu.current_device)
        set_device = staticmethod(tpu.set_device)
        device_count = staticmethod(tpu.device_count)
        is_available = staticmethod(tpu.is_available)
        stream = staticmethod(tpu.stream)
        current_stream = staticmethod(tpu.current_stream)
        set_stream = staticmethod(tpu.set_stream)
        synchronize = staticmethod(tpu.synchronize)
        get_device_properties = staticmethod(tpu.get_device_properties)
        memory_allocated = staticmethod(tpu.memory_allocated)
        exchange_device = staticmethod(tpu._exchange_device)
        maybe_exchange_device = staticmethod(tpu._maybe_exchange_device)

        @staticmethod
        def _set_stream_by_id(stream_id, device_index, device_type):
            tpu.set_stream(torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

        @staticmethod
        def get_raw_stream(device_index):
            return tpu.current_stream(device_index).stream_id

        @staticmethod
        def get_compute_capability(device=None):
            return ""

        @staticmethod
        def is_bf16_supported(including_emulation=False):
            return True

        @classmethod
        def is_dtype_supported(cls, dtype, including_emulation=False):
            return True

    module.init_device_reg()  # it would overwrite ours if it came later
    module.register_interface_for_device("tpu", TpuInterface)
    for index in range(tpu.device_count()):
        module.register_interface_for_device(f"tpu:{index}", TpuInterface)


def _register_backend(module):
    """Before the entry point is asked: of two threads that compile first, both would load it, and one be refused."""
    module.register_backend(tpu)


def tpu(gm, example_inputs, **options):
    """The backend. Here, where it can be named: pickled modules that are compiled say whose they are."""
    from torch_tpu import dynamo_backend

    return dynamo_backend.tpu(gm, example_inputs, **options)


def _take_over_inductor(module):
    import torch

    original = module.compile_fx

    def on_tpu(thing):
        return isinstance(thing, torch.Tensor) and thing.device.type == "tpu"

    def uses_tpu(gm, example_inputs):
        values = [node.meta.get("example_value", node.meta.get("val")) for node in gm.graph.nodes]
        return any(map(on_tpu, [*example_inputs, *values, *gm.parameters(), *gm.buffers()]))

    @functools.wraps(original)
    def compile_fx(model_, example_inputs_, *arguments, **options):
        if not isinstance(model_, torch.fx.GraphModule) or not uses_tpu(model_, example_inputs_):
            return original(model_, example_inputs_, *arguments, **options)
        if module.V.aot_compilation:
            raise NotImplementedError(
                "tpu: AOTInductor has no code for the device; use torch.compile, and torch.export.save for files"
            )
        from torch_tpu.dynamo_backend import tpu

        return tpu(model_, example_inputs_)

    module.compile_fx = compile_fx


def _trace_our_names(module):
    """Dynamo would trace what torch.tpu's functions do to the device, also where PyTorch calls them around a break.
    They run as they are, but for those of streams and devices: in graphs they are torch.accelerator's, which it knows,
    and what they say of the machine is constant.
    """
    from torch import accelerator
    from torch._dynamo import utils, variables

    from torch_tpu import devices, tpu

    module.add("torch_tpu")
    theirs = {
        tpu.current_device: accelerator.current_device_index,
        tpu.current_stream: accelerator.current_stream,
        tpu.is_available: accelerator.is_available,
        tpu.stream: tpu.stream,  # of our interface
        tpu.synchronize: accelerator.synchronize,
    }
    constant = [
        tpu.device_count,
        tpu.get_amp_supported_dtype,
        tpu.get_device_capability,
        tpu.get_device_name,
        tpu.get_device_properties,
        tpu.is_bf16_supported,
        tpu.is_initialized,
    ]
    theirs |= dict(zip(constant, constant, strict=True))
    utils.common_constant_types.add(devices.DeviceProperties)
    variables.torch.constant_fold_functions |= dict.fromkeys(constant)
    variables.torch.constant_fold_functions_need_guards[tpu.is_initialized] = None

    class InGraph(variables.TorchInGraphFunctionVariable):
        def __init__(self, value, **options):
            super().__init__(theirs.get(value, value), **options)

        def call_function(self, tx, args, kwargs):
            if self.value is tpu.stream and [v.is_constant_none() for v in (*args, *kwargs.values())] == [True]:
                return variables.ctx_manager.NullContextVariable()
            return super().call_function(tx, args, kwargs)

    class Device(variables.ctx_manager.GenericDeviceVariable):
        _exchange_fn = staticmethod(tpu._exchange_device)
        _maybe_exchange_fn = staticmethod(tpu._maybe_exchange_device)
        _get_device_index_fn = staticmethod(devices._index)

        def module_name(self):
            return "torch.tpu"

        def python_type(self):
            return tpu.device

    module.torch_name_rule_map.append({f"torch.tpu.{function.__name__}": InGraph for function in theirs})
    variables.UserDefinedClassVariable._in_graph_classes().update((tpu.Event, tpu.Stream))
    variables.register_device_context_manager(tpu.device, Device)


def _register_random(module):
    module.register_graphsafe_rng_device_type("tpu")


def _order_streams(module):
    """AOTAutograd's order of what graphs do on streams, in two points.

    What another stream still reads is kept by what it recorded, so backward needs no wait before memory is freed. For
    where to place one, Triton is asked how long each operation would take on a GPU.

    A stream that waits for another one has what it reads afterwards go by way of the wait, gradients of the results
    among it, if it is the one of the backward: no wait of the forward could then be told from those of the backward.
    """
    of_gpus, read_after_waits = module.sync_deallocations, module._collect_wait_stream_forward_deps

    def sync_deallocations(gm):
        values = [node.meta.get("val") for node in gm.graph.nodes]
        if not any(isinstance(v, module.torch.Tensor) and v.device.type == "tpu" for v in values):
            of_gpus(gm)

    def _collect_wait_stream_forward_deps(graph):
        def of_the_forward(node):
            return node.op != "placeholder" or "tangents" not in node.target

        return {wait: list(filter(of_the_forward, read)) for wait, read in read_after_waits(graph).items()}

    module.sync_deallocations = sync_deallocations
    module._collect_wait_stream_forward_deps = _collect_wait_stream_forward_deps


def _repeat_random_numbers(module):
    """For graphs whose backward draws again what the forward drew. Where the generator's state is kept as a tensor (of
    several devices, or with Inductor's fallback_random) the devices that torch does it on stand in its code."""
    import torch

    from torch_tpu import tpu

    def replaces(operator):
        key = torch._C.DispatchKey.BackendSelect
        original = operator.py_kernels.pop(key)

        def register(make):
            ours = operator.py_impl(key)(functools.wraps(original)(make(original)))
            cells = [c for of_mode in operator.python_key_table.values() for c in of_mode.__closure__ or ()]
            for cell in cells:  # what modes (of tracing) call directly
                if cell.cell_contents is original:
                    cell.cell_contents = ours

        return register

    def device_of(args, kwargs):
        device = kwargs.get("device") or next((a.device for a in args if isinstance(a, torch.Tensor)), "cpu")
        return torch.device(device)

    @replaces(module.run_and_save_rng_state)
    def _save(original):
        def run(op, *args, **kwargs):
            device = device_of(args, kwargs)
            if device.type != "tpu":
                return original(op, *args, **kwargs)
            return tpu.get_rng_state(device), op(*args, **kwargs)

        return run

    @replaces(module.run_with_rng_state)
    def _restore(original):
        def run(state, op, *args, **kwargs):
            device = device_of(args, kwargs)
            if device.type != "tpu":
                return original(state, op, *args, **kwargs)
            current = tpu.get_rng_state(device)
            tpu.set_rng_state(state, device)
            try:
                return op(*args, **kwargs)
            finally:
                tpu.set_rng_state(current, device)

        return run

    run_with = module._impl_graphsafe_rng

    @functools.wraps(run_with)
    def _impl_graphsafe_rng(op, *args, rng_state=None, **kwargs):
        """Gives the default generator its state back, also where the call fails (one that can't be captured does)."""
        if rng_state.device.type != "tpu":
            return run_with(op, *args, rng_state=rng_state, **kwargs)
        generator = tpu.default_generators[rng_state.device.index]
        current = generator.graphsafe_get_state()
        try:
            return run_with(op, *args, rng_state=rng_state, **kwargs)
        finally:
            generator.graphsafe_set_state(current)

    module._impl_graphsafe_rng = _impl_graphsafe_rng


def _keep_steps_on_the_device(module):
    """A compiled optimizer that starts there counts its steps on the device, as on those that torch lists by name."""
    original = module.OptimizerVariable._set_capturable

    @functools.wraps(original)
    def _set_capturable(self, tx):
        for group in self.value.param_groups:
            fresh = all(p.device.type == "tpu" and p not in self.value.state for p in group["params"])
            if fresh and "capturable" in group:
                group["capturable"] = True
        return original(self, tx)

    module.OptimizerVariable._set_capturable = _set_capturable


def _infer_grouped_products(module):
    """torch infers those of bf16 alone; models multiply by groups on a tpu in any type, and compiled."""
    import torch

    @module.register_op_impl(torch.ops.aten._grouped_mm.default)
    def grouped_mm(fake_mode, func, a, b, offs=None, bias=None, out_dtype=None):
        if a.device.type != "tpu" or (a.dim() == b.dim() == 2 and offs is None):
            return NotImplemented
        sizes = [a.shape[-2], b.shape[-1]]
        if a.dim() == b.dim():
            sizes.insert(0, a.shape[0] if a.dim() == 3 else offs.shape[0])
        with fake_mode:
            return torch.empty(sizes, dtype=out_dtype or a.dtype, device=a.device)


def _change_constants(function, changed):
    """Of functions whose devices stand in their code, and in whose place one of ours could not be traced."""
    code = function.__code__
    function.__code__ = code.replace(co_consts=tuple(map(changed, code.co_consts)))


def _allow_flex_attention(module):
    _change_constants(module._validate_device, lambda c: c | {"tpu"} if isinstance(c, frozenset) else c)


def _check_registrations(module):
    """In torch.library.opcheck ours takes the place of a device that this torch has not."""
    names = {"xpu": "tpu", "AutogradXPU": "AutogradPrivateUse1"}

    def renamed(constant):
        return tuple(map(renamed, constant)) if isinstance(constant, tuple) else names.get(constant, constant)

    _change_constants(module.autograd_registration_check, renamed)


def _autocast_flex_attention(module):
    """Of its operands alone: scores stay in their precision, and gradients are in that of the operands."""
    import torch

    attention, attention_backward = module.flex_attention, module.flex_attention_backward

    @attention.py_impl(torch._C.DispatchKey.AutocastPrivateUse1)
    def autocast(query, key, value, *arguments):
        if torch.is_autocast_enabled("tpu"):
            query, key, value = (t.to(torch.get_autocast_dtype("tpu")) for t in (query, key, value))
        with torch.autocast("tpu", enabled=False):
            return attention(query, key, value, *arguments)

    @attention_backward.py_impl(torch._C.DispatchKey.AutocastPrivateUse1)
    def backward(*arguments):
        with torch.autocast("tpu", enabled=False):
            return attention_backward(*arguments)


def _causal_attention_of_nested_tensors(module):
    """Without a kernel for packed sequences PyTorch has none for it; whether there is one, it asks of CUDA."""
    original = module.can_use_flash_attention

    @functools.wraps(original)
    def can_use_flash_attention(params, debug=False):
        if params.query.device.type != "tpu":
            return original(params, debug)
        return params.is_causal and params.attn_mask is None and params.dropout == 0 and module.flash_sdp_enabled()

    module.can_use_flash_attention = can_use_flash_attention


_ON_IMPORT = {
    "torch.nested._internal.sdpa": _causal_attention_of_nested_tensors,
    "torch._higher_order_ops.flex_attention": _autocast_flex_attention,
    "torch.nn.attention.flex_attention": _allow_flex_attention,
    "torch._subclasses.fake_impls": _infer_grouped_products,
    "torch._dynamo.trace_rules": _trace_our_names,
    "torch._dynamo.device_interface": _register_interface,
    "torch._dynamo.backends.registry": _register_backend,
    "torch._functorch._aot_autograd.utils": _register_random,
    "torch._functorch._aot_autograd.streams": _order_streams,
    "torch._prims.rng_prims": _repeat_random_numbers,
    "torch._dynamo.variables.optimizer": _keep_steps_on_the_device,
    "torch._inductor.compile_fx": _take_over_inductor,
    "torch.testing._internal.optests.autograd_registration": _check_registrations,
}
