"""[pure] An image that a model reads. Results of tools hold images without any other type of a model call."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Image:
    """An image for the model: its type, such as `image/png`, and its bytes in base64."""

    mime_type: str
    data: str = field(repr=False)
