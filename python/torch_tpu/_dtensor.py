"""DTensor knows attention by the names of CUDA's kernels. Here it is the CPU's operator: told the same of that."""

import functools

import torch

from torch_tpu import _dynamo

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_LENGTH = 2  # the dim of [batch, heads, length, width] that context parallelism shards


def register():
    _dynamo.register_on_import(
        {
            "torch.distributed.tensor._ops._matrix_ops": _shard_attention,
            "torch.distributed.tensor.experimental._context_parallel._attention": _attend_in_a_ring,
        }
    )


def _shard_attention(module):
    """Results and operands are sharded along the batch or the heads, all alike; a mask is taken as it lies."""

    def strategies(first, op_schema):
        mesh, results = op_schema.get_mesh_from_args(), len(op_schema.op._schema.returns)
        operands, masks = op_schema.args_strategy, op_schema.kwargs_strategy
        query, key = (x.shape for x in operands[first : first + 2])
        # Heads that share keys stay together.
        dims = [0, 1] if query[1] == key[1] or key[1] % mesh.size() == 0 else [0]
        ways = [[module.Replicate()] * (results + len(operands) + len(masks))]
        for dim in dims:
            way = [module.Shard(dim)] * (results + len(operands))
            for mask in masks:
                along = len(mask.shape) == len(query) and mask.shape[dim] != 1
                way.append(module.Shard(dim) if along else module.Replicate())
            ways.append(way)

        lying = [mask.strategies[0].output_spec.placements for mask in masks]

        def masks_stay(inputs, _):  # DTensor reshards positional arguments only
            return [spec.placements for spec in inputs[len(operands) :]] == lying

        found = module.expand_to_full_mesh_op_strategy(
            mesh, op_schema, ways, input_index=results, is_valid_strategy_cb=masks_stay
        )
        if not found.strategies:
            raise NotImplementedError(f"attention with a mask that lies as {lying[0]}; replicate it")
        return found

    info = module.RuntimeSchemaInfo(static_kwargkey=["attn_mask"])
    for op, query in ((_FORWARD, 0), (_BACKWARD, 1)):
        module.register_op_strategy(op, schema_info=info)(functools.partial(strategies, query))


def _attend_in_a_ring(module):
    """Context parallelism, where every rank has a part of the queries and the parts of the keys go round."""
    DTensor = module.DTensor

    def forward(group, query, key, value, dropout_p=0.0, is_causal=False, scale=None):
        return module._templated_ring_attention(
            group, _LENGTH, _FORWARD, query, key, value, is_causal, dropout_p=dropout_p, scale=scale
        )

    def backward(group, grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, scale=None):
        return module._templated_ring_attention_backward(
            group,
            _LENGTH,
            _BACKWARD,
            grad_out,
            "grad_out",
            query,
            key,
            value,
            out,
            logsumexp,
            is_causal,
            dropout_p=dropout_p,
            scale=scale,
        )

    def handler(op, arguments, named):
        if named.get("attn_mask") is not None:
            raise NotImplementedError("context parallelism takes no attention mask")
        mesh, placements = arguments[0].device_mesh, arguments[0].placements
        own = [a.to_local() if isinstance(a, DTensor) else a for a in arguments]
        attend = forward if op is _FORWARD else backward
        results = attend(mesh.get_group(), *own, scale=named.get("scale"))
        return tuple(DTensor.from_local(r, mesh, placements, run_check=False) for r in results)

    module.custom_ops.update({_FORWARD: handler, _BACKWARD: handler})
