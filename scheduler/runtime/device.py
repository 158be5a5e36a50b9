"""Settings of a device that PyTorch's own models need. It knows devices, nothing of models."""

import torch


def prepare_device(device: torch.device) -> None:
    """Set what holds for the whole process before models run on `device`.

    cuDNN builds a plan for every new shape of an attention call, in some tenths of a second, and
    newer GPUs take it first: here batch and context change in nearly every round.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(enabled=False)
