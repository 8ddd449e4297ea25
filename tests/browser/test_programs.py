"""Programs in the dashboard: a log, a restart, and adding agents, people and tool servers."""

from mew_spaces.gateway.gateway import RunningGateway
from mew_spaces.gateway.http_bodies import ProgramAnswer
from mew_spaces.gateway.programs import NewProgram
from playwright.async_api import expect

from tests.browser.conftest import HOSTILE, Join, OpenDashboard, Tab
from tests.browser.test_dashboard import REPORTED, WINDOW, answer, part, row


class Programs:
    """Records what the page asks for."""

    def __init__(self) -> None:
        self.added: list[NewProgram] = []

    def participants(self) -> tuple[str, ...] | None:
        return ("coder",)

    async def startable(self) -> tuple[str, ...]:
        return ("writer",)

    async def models(self) -> tuple[str, ...]:
        return ("coder",)

    async def log(self, participant: str, lines: int) -> tuple[str, ...] | None:
        return tuple(f"{HOSTILE} line {number}" for number in range(lines))

    async def restart(self, participant: str) -> ProgramAnswer:
        return ProgramAnswer(
            participant=participant, done=True, text="started" if participant == "writer" else "restarted"
        )

    async def add(self, new: NewProgram) -> ProgramAnswer:
        self.added.append(new)
        return ProgramAnswer(
            participant=new.participant, done=len(self.added) > 1, text="its program exited with code 3"
        )


async def test_programs_are_read_restarted_and_added(
    gateway: RunningGateway, open_dashboard: OpenDashboard, join: Join, tab: Tab
) -> None:
    programs = Programs()
    gateway.registry.programs["review"] = programs
    page = await open_dashboard()
    async with join("coder") as coder:
        await coder.report(tokens=9_000, **WINDOW, context=REPORTED)
        await row(page, "coder").click()
        await page.locator("#detail [data-section=log] summary").click()
        await expect(part(page, "program-log")).to_contain_text("line 199")
        await expect(page.get_by_text("mew logs coder --follow")).to_be_visible()
        await page.get_by_text("More", exact=True).click()
        await page.get_by_role("button", name="Restart program: coder").click()
        await expect(page.get_by_text("continues its stored session")).to_be_visible()
        await page.get_by_role("button", name="Restart program", exact=True).click()
        await expect(answer(page)).to_have_text("Restarted.")
        await row(page, "writer").click()
        await expect(page.get_by_role("button", name="Restart program: writer")).to_have_count(0)
        await page.get_by_role("button", name="Start program: writer").click()
        await expect(answer(page)).to_have_text("Started.")

        await page.get_by_role("button", name="Whole space").click()
        await page.get_by_text("Add a participant").click()
        await page.get_by_label("Name").fill("editor")
        await page.get_by_label("Role").select_option("tool")
        await page.get_by_role("textbox", name="URL").fill("https://tools.example/mcp")
        await page.get_by_label("Role").select_option("agent")
        await expect(page.get_by_role("textbox", name="URL")).to_be_hidden()
        await page.get_by_label("Prompt").fill("You edit.")
        add = page.get_by_role("button", name="Add", exact=True)
        outcome = page.locator("#detail form .answer")
        await add.click()
        await expect(outcome).to_have_text("Its program exited with code 3.")
        await page.get_by_label("Prompt").fill("You edit.")
        await expect(outcome).to_have_text("")
        await add.click()
        await expect(outcome).to_have_text("editor: its program exited with code 3.")
        assert programs.added[1] == NewProgram(participant="editor", like="coder", system_prompt="You edit.")
        await page.get_by_label("Role").select_option("tool")
        await page.get_by_label("Name").fill("web")
        await page.get_by_role("textbox", name="URL").fill("https://tools.example/mcp")
        await add.click()
        await expect(outcome).to_contain_text("web: ")
        assert programs.added[2] == NewProgram(participant="web", type="mcp_server", value="https://tools.example/mcp")
        await page.get_by_label("Program").select_option("from space.yaml")
        await page.get_by_role("button", name="Start", exact=True).click()
        await expect(outcome).to_have_text("writer: Started.")
        await page.get_by_label("Role").select_option("person")
        await page.get_by_label("Name").fill("grace")
        await add.click()
        await expect(outcome).to_contain_text("grace was added. Its token, shown only once: ")
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await page.get_by_role("button", name="Copy sign-in link").click()
        await expect(page.get_by_role("button", name="Copied")).to_be_visible()
        link = await page.evaluate("navigator.clipboard.readText()")
        second = await page.context.new_page()
        await second.goto(link)
        await expect(second.locator("#me-name")).to_have_text("grace")
    assert tab.complaints == []
