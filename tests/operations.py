"""The operations of torch in a block of a test."""

from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """A context that keeps the names of all operations, also of backward passes."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))
