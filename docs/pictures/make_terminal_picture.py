"""Take docs/pictures/terminal.svg: the real application and a real gateway, with the script of the dashboard's picture.

python docs/pictures/make_terminal_picture.py [--out FILE] [--size 128x30]
"""

import argparse
import asyncio
import re
from pathlib import Path

from make_dashboard_picture import SPACE, converse, member_of, send_reports
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent.cli.remote.identity import Identity
from mew_agent.parts.terminal.app import SpaceApp

PAUSES = 100
"""How many times the application is given 50 ms to draw what arrived."""


async def take(width: int, height: int) -> str:
    """Start the gateway and the application, take the picture, stop both."""
    async with (
        serve_gateway(parse_space(SPACE)) as gateway,
        member_of(gateway, "coder") as coder,
        member_of(gateway, "writer") as writer,
        member_of(gateway, "local-llm") as local,
        member_of(gateway, "files") as files,
    ):
        app = SpaceApp(Identity(gateway.ws_url, "review", "ada", gateway.token_of("ada")))
        async with app.run_test(size=(width, height)) as pilot, member_of(gateway, "ada") as ada:
            await send_reports(coder, writer, local)
            await converse(ada, coder, writer, files)
            for _ in range(PAUSES):
                await pilot.pause(0.05)
                chats = [one for one in app.view.feed.entries.values() if one.kind == "chat"]
                if chats and "for the changelog" in chats[-1].text:
                    break
            await pilot.pause(0.5)
            # Without fonts of another host.
            return re.sub(r"@font-face \{.*?\}", "", app.export_screenshot(title="mew"), flags=re.DOTALL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("terminal.svg"))
    parser.add_argument("--size", default="128x30", help="COLUMNSxROWS of the terminal")
    options = parser.parse_args()
    columns, rows = (int(side) for side in options.size.split("x"))
    options.out.write_text(asyncio.run(take(columns, rows)), encoding="utf-8")
