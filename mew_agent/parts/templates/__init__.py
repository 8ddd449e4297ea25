"""More templates for `mew init`: `cat-maze`, `demo` and `note-taker`.

The default one is in `mew_agent/templates`.
"""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
"""An entry of the table `mew_agent.templates`: a folder of templates."""
