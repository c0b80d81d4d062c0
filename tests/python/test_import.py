"""What a program that only imports torch, or computes on the CPU, has of torch_tpu."""

from helpers import run_python


def test_import_is_silent_and_creates_nothing():
    done = run_python("""
        import torch
        assert torch.tpu.is_available() and not torch.tpu.is_initialized()
        assert torch.accelerator.current_accelerator().type == "tpu"
        assert torch.device("tpu", 0).type == "tpu"
    """)
    assert done.stdout == "" and done.stderr == ""


def test_what_is_compiled_for_the_cpu_makes_no_devices():
    run_python("""
        import torch
        from torch.utils.checkpoint import checkpoint
        f = torch.compile(lambda x: x.sin().cos().exp(), backend="aot_eager")
        x = torch.ones(4, requires_grad=True)
        checkpoint(f, x, use_reentrant=False).sum().backward()  # asks whether its forward initialized a device
        assert torch.accelerator.current_stream().stream_id == 0
        assert not torch.tpu.is_initialized() and not torch.tpu._initialized
        for index in (1, 99):
            try:
                torch.accelerator.current_stream(index)
            except RuntimeError as error:
                assert "invalid device ordinal" in str(error), error
            else:
                raise AssertionError(index)
    """)


def test_import_is_quick():
    program = """
        import os, sys, time
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        start = time.process_time()
        import torch
        torchs, before = time.process_time() - start, set(sys.modules)
        import torch_tpu
        start = time.process_time()
        torch_tpu._autoload()
        print((time.process_time() - start) / torchs)
        more = [name for name in set(sys.modules) - before if name.split(".")[0] not in ("torch_tpu", "xla_plugins")]
        assert more == ["torch.tpu"], more
    """
    # 0.04 of what torch's own import takes, on an idle machine and on a busy one. Dynamo's takes as long as torch's.
    assert any(float(run_python(program).stdout) < 0.125 for _ in range(4))


def test_import_does_not_pull_in_dynamo():
    run_python("""
        import sys, torch
        assert "torch._dynamo" not in sys.modules
    """)


def test_a_broken_installation_warns_and_leaves_torch_alone():
    done = run_python("""
        import sys
        sys.modules["torch_tpu._C"] = None  # an extension that can't be imported
        import torch
        assert torch.ones(2).sum() == 2
    """)
    assert "torch_tpu" in done.stderr and "doctor" in done.stderr
