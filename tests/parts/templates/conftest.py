"""The programs of templates as modules."""

from tests.support.template_programs import load

__all__ = ["load"]
