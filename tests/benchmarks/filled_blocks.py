"""Blocks full of numbers, as if they had been computed: for measurements that need no prompt."""

from inference.kv_cache.tensors import KvTensors


def fill_blocks(kv: KvTensors) -> None:
    """Put random numbers into all blocks."""
    kv.touch(range(kv.num_blocks))
    for layer in kv.layers:
        for plane in layer.planes:
            if plane.is_floating_point():
                plane.normal_()
            else:
                plane.random_(0, 100)
