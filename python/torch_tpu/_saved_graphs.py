"""Graphs that are saved with what torch.compile made around them (`aot_compile`, `save_compiled_function`): as what
they were compiled from. A process that loads one compiles it anew; the programs are in the cache."""

import dataclasses

from torch._inductor.output_code import OutputCode
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes

from torch_tpu import dynamo_backend

_OF_NO_USE_LATER = ("nn_module_stack", "source_fn_stack", "example_value")  # and not to be pickled


@dataclasses.dataclass
class SavedGraph(OutputCode):
    graph: bytes
    wait: bool
    run: object = None
    _boxed_call: bool = True  # of the instance: what wraps it copies its dictionary

    @classmethod
    def of(cls, gm, wait):
        for node in gm.graph.nodes:
            for key in _OF_NO_USE_LATER:
                node.meta.pop(key, None)
        with _disable_current_modes():  # the tensors that are its constants are no fake ones
            graph = GraphPickler.dumps(gm, Options(ops_filter=None))
        saved = cls(graph, wait)
        saved.run = dynamo_backend.compiled(gm, wait)
        return saved

    def __call__(self, inputs):
        return self.run(inputs)

    def prepare_for_serialization(self):
        self.run = None

    def post_compile(self, *_):
        if self.run is None:
            gm = GraphPickler.loads(self.graph, FakeTensorMode(shape_env=ShapeEnv()))
            gm.recompile()
            self.run = dynamo_backend.compiled(gm, self.wait)

    def set_triton_bundle(self, _):
        pass
