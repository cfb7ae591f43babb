"""Tensors of torch whose elements are not all that they consist of."""

from ._errors import Invalid


def _cause(tensor):
    """What the tensor is, and what to give in its place; None: it is dense."""
    if tensor.is_nested:
        return "a nested tensor", "the tensors of its unbind(), or to_padded_tensor()"
    if tensor.is_quantized:
        way = "int_repr(), and its scale and zero point beside it, or dequantize()"
        return f"a quantized tensor ({tensor.dtype})", way
    layout = str(tensor.layout)
    if "sparse" in layout:
        return f"a tensor of layout {layout}", "to_dense(), or its indices and values"
    if layout != "torch.strided":
        return f"a tensor of layout {layout}", "to_dense()"
    if tensor.device.type == "meta":
        return "a tensor on the device meta, which has no elements", "one with elements"
    return None


def check_dense(tensor, call):
    """Refuse a tensor that is more than its elements, one after another."""
    cause = _cause(tensor)
    if cause:
        what, way = cause
        raise Invalid(f"cannot {call} {what}; give {way}")
