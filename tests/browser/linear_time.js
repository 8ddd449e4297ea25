// Measures the page's text functions and regular expressions in the page itself. Evaluates to an object of functions;
// `tests/browser/test_linear_time.py` says what they are called with, and finds what must be among them.
(() => {
  const load = (name) => import(`/dashboard/${name}`);
  const MORE_THAN_LINEAR = 11; // of four times the length: linear is 4, quadratic 16; memory and its collection cost some
  const IN_PROPORTION = 6; // of four times the length: to hide more, both runs of the shorter must take twice their time
  const WORTH_MS = 4; // shorter times are within the resolution of the clock and the noise of a busy machine
  const RESOLUTION_MS = 0.5; // the clock shows tenths
  const TOO_LONG_MS = 2_000;
  const ROUNDS = 5;
  const AGREES = 0.8; // a time that is as large as this share of another: quadratic growth is hidden from 0.7
  const FRAME_MS = 16;

  // What a member can write: repeated, and repeated between two other characters
  const PIECES = [
    " ", "\n", "\t", "\r", "\r\n", '"', "'", "`", "*", "_", "~", "#", "|", "-", "+", "=", ":", "!", "\\", "&", "/", ".", ",", "0", "a", "T", "@", "…",
    "[", "]", "(", ")", "<", ">", "{", "}", "\u0301", "\u0338", "\u200b", "\u202e", "\ufe0f", "\u3164", "\ud800", "\u00e9", "\u0430", "\u05d0", "\u4e2d", "\ud83d\ude42",
    "**a ", "*a ", "_a ", "~~a ", "*a_ ", "**a*", "*a**", "a*b_c~d", "[a](", "![a](", "[a]", "[a][", "[a]: b\n", "[[", "](", "[a](b \"", "[a](<", "[x](y) ", "*[a](b)",
    "| - ", "|-", "|a", "a|b\n", "|a|\n|-|\n", "\n|-", "\\|", "<!--", "<!-- ", "<a", "<a ", "<a b=\"", "</a", "<?", "<![CDATA[", "<!A ", "<b>",
    "\n> ", "\n>", "> > ", "\n- ", "\n  - ", "- - ", "- a\n\n", "> - ", "\n1. ", "1) ", "\n\t- ", "\n    a", "\n# ", "# ", " #", "```\n", "\n```", "` ``", "`a", "***", "_ _",
    "http://", "https://a.", "https://a.b/(", "mailto:", "a@b.", "&#", "&amp;", "\\\n", "  \n", " \n", "a\n", "a\n=\n", "a b ", "\n@@ ", "@@", "\n+", "data: ", "\ndata:", "{\"a\":", "[1,", "/*", "/**",
    "!", ": {", ": [", "a\u200b", "a\u0430", "1:", "T1", "@a ", "/a ", "a_",
  ];
  const MIXED = PIECES.join("");
  const repeat = (piece, length) => piece.repeat(Math.ceil(length / piece.length));
  const growing = (part) => (length) => {
    let text = "";
    for (let count = 1; text.length < length; count += 1) text += part(count);
    return text;
  };

  /** What makes texts of a length, the simple ones: [name, length => text]. */
  const repeated = PIECES.map((piece) => [piece, (length) => repeat(piece, length)]);

  /** All of them. `heads` begin some. */
  const makers = (heads = []) => [
    ...repeated,
    ...PIECES.map((piece) => [`x${piece}…x`, (length) => `x${repeat(piece, length)}x`]),
    ...["# a", "```", "|a|b|\n|", "|a|\n|-|\n", "- a\n", "> a\n", "[a](", "@@ ", "<a ", "http://a/", "a  ", ...heads].flatMap((head) =>
      [" ", "\t", "\n", "a", ".", "*", "#", "-", "|", "a ", " -|", head].map((piece) => [`${head}${piece}…x`, (length) => `${head}${repeat(piece, length)}x`]),
    ),
    ["growing backticks", growing((count) => `${"`".repeat(count)} `)],
    ["growing lists", growing((count) => `${" ".repeat(count)}- a\n`)],
    ["growing quotes", growing((count) => `${">".repeat(count)} a\n`)],
    ["growing blanks", growing((count) => `a${" ".repeat(count)}`)],
  ];

  const timed = async (run, ...args) => {
    const start = performance.now();
    await run(...args);
    return performance.now() - start;
  };

  /** The smallest of several times, which other processes disturb least. */
  const least = async (run, value, times) => {
    let best = Infinity;
    for (let count = 0; count < times && (count === 0 || best < TOO_LONG_MS); count += 1) best = Math.min(best, await timed(run, value));
    return best;
  };

  /** The least of a time and of others, taken until two of them agree, or the time of four times the length is in proportion. */
  const confirmed = async (run, value, ms, longerMs) => {
    let best = ms;
    for (let count = 0; count < ROUNDS; count += 1) {
      const next = await timed(run, value);
      const agrees = next > AGREES * best && best > AGREES * next;
      best = Math.min(best, next);
      if (agrees || longerMs <= IN_PROPORTION * best) break;
    }
    return best;
  };

  /**
   * The least time of each length, as [length, ms]. Another process can lengthen any single run. The lengths take
   * turns, so that a busy moment does not fall on one of them alone.
   */
  const leastInTurns = async (run, make, lengths, rounds) => {
    const texts = lengths.map((length) => make(length));
    const best = lengths.map(() => Infinity);
    for (let round = 0; round < rounds; round += 1) {
      for (const [index, text] of texts.entries()) {
        if (round === 0 || best[index] < TOO_LONG_MS) best[index] = Math.min(best[index], await timed(run, text));
      }
    }
    return lengths.map((length, index) => [length, best[index]]);
  };

  /**
   * Whether the time of `run(make(length))` grows faster than its length, as [length, ms] of each step, else undefined.
   * Lengths are `first`, four times as much and so on up to `most`. Two steps in a row must grow too fast: a single one
   * may be the collector of garbage or another process, and is followed to a greater length.
   */
  const superlinear = async (run, make, first, most = 4 * first) => {
    await timed(run, make(Math.ceil(first / 8))); // compiled, and a cubic function is noticed before it lasts for ever
    let before = await least(run, make(first), 1);
    let isSuspect = false;
    for (let length = first; 4 * length <= most || isSuspect; length *= 4) {
      let ms = await least(run, make(4 * length), 1);
      // Another process has often lengthened the longer run. Three more cost a sixth of all the steps.
      for (let count = 0; count < 3 && ms >= WORTH_MS && ms > MORE_THAN_LINEAR * before && ms < TOO_LONG_MS; count += 1) ms = Math.min(ms, await timed(run, make(4 * length)));
      isSuspect = false;
      // A shorter run that was interrupted once would hide any growth.
      if (ms >= WORTH_MS && ms <= MORE_THAN_LINEAR * before) before = await confirmed(run, make(length), before, ms);
      if (ms >= WORTH_MS && ms > MORE_THAN_LINEAR * before) {
        const steps = await leastInTurns(run, make, [length / 4, length, 4 * length], ROUNDS);
        const ratios = [steps[1][1] / steps[0][1], steps[2][1] / steps[1][1]];
        isSuspect = steps[2][1] >= WORTH_MS && ratios[1] > MORE_THAN_LINEAR;
        const isMeasured = steps[0][1] >= RESOLUTION_MS; // any time is many times nothing
        if (isSuspect && ((isMeasured && ratios[0] > MORE_THAN_LINEAR) || ms > TOO_LONG_MS)) return steps;
      }
      if (ms > TOO_LONG_MS) return undefined;
      before = ms;
    }
    return undefined;
  };

  const shown = (steps) => steps.map(([length, ms]) => `${length}: ${ms.toFixed(1)} ms`).join(", ");

  // Nodes that a function needs, laid out as in the page

  let isLaidOut = false;
  const box = () => {
    isLaidOut = true;
    const node = document.createElement("div");
    node.style.width = "600px";
    document.body.append(node);
    return node;
  };
  const laidOut = (nodes) => {
    const root = box();
    for (const node of [nodes].flat()) root.append(node);
    root.getBoundingClientRect();
    root.remove();
  };
  const view = (text, more = {}) => ({
    id: "coder", connected: true, order: text, tone: "fine", word: text, role: "agent", groups: { state: text }, filters: ["all"], searched: text, has_context: true, about: text, says: text, received_at: "2026-01-01T10:00:00Z",
    tokens: 5, max_tokens: 9, amount: text, window: text, figure: text, reading: text, share: text, fullness: text, known: text, origin: text, old: text, due: text,
    gauge: { pattern: "solid", tone: "fine", fill: 0.5, mark: 0.9 }, remarks: [text], facts: [[text, text]], parts: [{ part: text, name: text, tokens: 1, amount: text, share: text, basis: text }],
    savings: [text], progress: { text, done: 1, total: 2 }, compaction: { at: text, trigger: text, reason: text, text, line: text, known: [[text, text]], freed_tokens: 5 }, pins: [{ id: text, text, about: text, is_removable: true }], ...more,
  });
  const call = (text) => ({ to: [text], payload: { method: "tools/call", params: { name: text, arguments: { [text]: text }, _meta: text } } });
  const changes = (text) => ({ "": { keys: ["old", "new"], rows: [["@", text], ["-", text], ["+", text]], added: 1, removed: 1 }, "edits/0": { keys: ["before", "after"], rows: [[" ", text]], added: 0, removed: 0 } });
  let ids = 0;
  const envelope = (kind, payload, more = {}) => ({ id: `measured-${(ids += 1)}`, ts: "2026-01-01T10:00:00Z", from: "coder", to: ["ada"], kind, payload, ...more });
  const talk = async () => {
    const [{ Conversation }, { ConversationView }] = [await load("conversation.js"), await load("conversation_view.js")];
    const conversation = new Conversation();
    const list = box();
    const [empty, newest] = [document.createElement("p"), document.createElement("button")];
    const view = new ConversationView({ list, empty, newest }, conversation, { me: "ada", mayDecide: () => true, mayApprove: () => true });
    const take = (one) => {
      conversation.receive(one);
      return one;
    };
    let drawnMs = 0;
    const draw = () => {
      if (performance.now() - drawnMs < FRAME_MS) return; // the page draws once for all that arrives before a frame
      view.draw(Date.now());
      drawnMs = performance.now();
    };
    const end = () => {
      view.draw(Date.now());
      view.close();
      list.remove();
    };
    return { conversation, view, list, take, draw, end };
  };
  const said = async (make) => {
    const { take, draw, end } = await talk();
    for (const one of make()) take(one);
    draw();
    end();
  };
  const services = (text) => ({
    requests: { ask: async () => ({ payload: {}, said: { pins: [], parts: [] } }), read: async () => ({ lines: [text] }) },
    figures: { load: async () => undefined, shownSeconds: () => 60, since: () => ({ id: text, samples: [], compactions: [] }), compactions: () => [] },
    me: "ada", space: "review", programs: () => ({ running: false, participants: [], startable: [], models: [], types: [] }), maySend: () => true, age: () => 1, now: () => Date.now(),
    runningTurn: () => undefined, range: { seconds: 60 }, log: () => [[0, text]], select: () => undefined,
    allowed: () => [{ text, pattern: { kind: "mcp/request", to: [text] } }],
  });
  const item = (text) => ({
    id: `item-${text.slice(0, 8)}`, kind: "approval", level: "blocking", participant: text, reason: text, since: text,
    actions: [{ label: text, envelope: { kind: "mcp/request", ...call(text) } }, { label: text, command: text }],
  });

  // How each exported function reads a text. `of` takes its module and the text.

  const text = (name, of) => [`text.js:${name}`, (m, t) => of(m[name], t)];
  const functions = {
    "actions.js:invitation": (m, t) => m.invitation(t, ["agent", ...t.split(" ")]),
    "actions.js:payloadOf": (m, t) => m.payloadOf({ fields: [{ name: "text" }], target: "recipient" }, { text: t }, t),
    "actions.js:isStatus": (m, t) => m.isStatus({ kind: t, payload: { status: t }, said: { text: t, stage: t } }),
    "actions.js:availableActions": (m, t) => m.availableActions(view(t, { id: t }), { me: "ada", hasTurn: true, programs: {} }, () => true),
    "arguments.js:Room": (m, t) => new m.Room({ isWhole: true }).take(t),
    "arguments.js:renderArguments": (m, t) => [{ a: t, [t]: 1, list: [t, { b: t }] }, { old: t, new: `x${t}` }, { edits: [{ before: t, after: "y", more: t }] }, { diff: `@@ @@\n-a\n${t}` }].forEach((one) => laidOut(m.renderArguments(one, new m.Room({ isWhole: true }), changes(t)))),
    "arguments.js:renderResult": (m, t) => [{ content: [{ type: "text", text: t }, { type: t }] }, { code: 1, message: t }, t].forEach((one) => laidOut(m.renderResult(one, new m.Room({ isWhole: true })))),
    "arguments.js:renderCall": (m, t) => laidOut(m.renderCall(t, call(t), new m.Room({ isWhole: true }))),
    "arguments.js:renderProposal": (m, t) => laidOut(m.renderProposal("x", call(t), new Set(), {}).nodes),
    "board.js:parseTime": (m, t) => [t, `2026-01-01T${t}`].forEach(m.parseTime),
    "board.js:Board": (m, t) => {
      const board = new m.Board();
      board.apply({ at: t, space: t, name: t, is_whole: true, participants: [view(t)], removed: [t], totals: { text: t }, groups: [{ by: "state", name: t, about: t }] }, 0);
      board.grouped(board.select("all", t.slice(0, -1)), "state");
      board.elapsedMs(t, 0);
    },
    "board.js:aged": (m, t) => [t, `\x1f${t}`, `\x1f2026-01-01T10:00:00Z\x1f${t}\x1f`].forEach((one) => m.aged(one, () => 1)),
    "chart.js:Chart": (m, t) => {
      const root = box();
      const chart = new m.Chart(root);
      chart.show([{ id: t, samples: [{ ms: 0, tokens: 1, max_tokens: 2, reading: t, share: t }], compactions: [{ ms: 5, line: t }], compactAt: 1, due: t }], 0, 10);
      chart.close();
      root.remove();
    },
    "commands.js:permitted": (m, t) => [m.permitted([{ kind: t, to: t }], "coder"), m.permitted([{ kind: "*", to: "a*" }], t)],
    "commands.js:readLine": (m, t) => [t, `/pin ${t}`, `/compact ${t}`, `/${t}`, `/call x ${t}`, `@coder${t}`].forEach((one) => {
      try {
        m.readLine(one, ["coder"], ["coder", "a"]);
      } catch (error) {
        if (!(error instanceof m.InvalidCommand)) throw error;
      }
    }),
    "commands.js:addressee": (m, t) => [t, `@${t}`, `@coder${t} x`].forEach((one) => m.addressee(one, ["coder", "a"])),
    "commands.js:complete": (m, t) => [t, `@${t}`, `/${t}`].forEach((one) => m.complete(one, one.length, { known: ["coder", "a"], patterns: [{ kind: "*" }], target: "coder" })),
    "composition.js:Composition": (m, t) => {
      const one = new m.Composition({ askPrefix: async () => [], mayAsk: () => true });
      one.show(view(t));
      laidOut(one.nodes);
    },
    "conversation.js:Conversation": async (m, t) => {
      const one = new m.Conversation();
      for (const kind of ["chat", "reasoning/start", "reasoning/thought", "mcp/request", "mcp/proposal", "participant/pin"]) {
        one.receive(envelope(kind, { text: t, message: t, reasoning: t, method: t, params: { name: t }, action: t, reason: t }, { from: t, to: [t], context: t, correlation_id: [t], said: { text: t, about: [t], stage: t } }));
      }
      one.frame(t, t);
      one.note(t, t, [t]);
    },
    "conversation.js:isAbout": (m, t) => m.isAbout({ from: `${t}a`, to: [t], about: [t] }, `${t}b`),
    "conversation_view.js:ConversationView": (_, t) => said(() => {
      const asked = envelope("chat", { text: t });
      const start = envelope("reasoning/start", { message: t });
      return [
        asked, envelope("chat", { text: t }, { correlation_id: [asked.id] }), envelope("chat/acknowledge", {}, { correlation_id: [asked.id], said: { text: t } }), start,
        envelope("reasoning/thought", { reasoning: t }, { context: start.id }), envelope("mcp/request", call(t).payload, { to: [t] }), envelope("mcp/proposal", call(t).payload, { to: [t] }),
        envelope("reasoning/thought", { reasoning: t }), ...["participant/pin", "capability/grant", "system/presence"].map((kind) => envelope(kind, {}, { said: { text: t, about: [t] } })),
      ];
    }),
    "detail.js:Detail": async (m, t) => {
      const root = box();
      const detail = new m.Detail(root, view(t), services(t));
      root.getBoundingClientRect();
      detail.close();
      root.remove();
    },
    "dom.js:setText": (m, t) => m.setText(document.createElement("p"), t),
    "dom.js:setTextOrHide": (m, t) => m.setTextOrHide(document.createElement("p"), t),
    "dom.js:make": (m, t) => laidOut(m.make("p", "", t)),
    "dom.js:makeText": (m, t) => laidOut(m.makeText("p", "", t)),
    "dom.js:paragraphs": (m, t) => laidOut(m.make("p", "", m.paragraphs(t))),
    "dom.js:makeSvg": (m, t) => m.makeSvg("text", { x: t }, t),
    "events.js:EventParser": (m, t) => [t, `data: ${t}\n\n`, `${t}\n\n`].forEach((one) => new m.EventParser().feed(one)),
    "events.js:messageOf": (m, t) => Promise.all([m.messageOf(new Response(JSON.stringify({ message: t }))), m.messageOf(new Response(t))]),
    "figures.js:FigureHistory": (m, t) => new m.FigureHistory(undefined, "review").add(view(t)),
    "markdown.js:render": (m, t) => laidOut(m.render(t)),
    "markdown.js:safeAddress": (m, t) => [t, `https://${t}`, `https://a/${t}`, `mailto:${t}`].forEach(m.safeAddress),
    "participant_list.js:ParticipantList": async (m, t) => {
      const root = box();
      root.style.height = "300px";
      const list = new m.ParticipantList(root, { age: () => 1 });
      list.show([[t, [view(t)]]], undefined, "ada");
      root.getBoundingClientRect();
      list.close();
      root.remove();
    },
    "permissions.js:maySend": (m, t) => [[t, "participant/request-status"], ["a*?*b**c", t], [`${t}!`, "chat"]].forEach(([kind, sent]) => m.maySend([{ kind, to: kind }], sent, "coder")),
    "program.js:ProgramLog": async (m, t) => {
      const one = new m.ProgramLog(t, async () => [t]);
      await one.load();
      laidOut(one.node);
    },
    "progress.js:ProgressBar": (m, t) => {
      const bar = new m.ProgressBar();
      bar.show({ text: t, done: 1, total: 2 });
      laidOut(bar.node);
    },
    "queue.js:Queue": (m, t) => {
      const queue = new m.Queue({ send: async () => undefined, maySend: () => true, select: () => undefined, age: () => 1, mayRestart: () => false, opened: new Set(), onOpen: () => undefined });
      queue.show([item(t), { ...item(t), id: "other", kind: t }]);
      queue.close();
    },
    "requests.js:Requests": (m, t) => {
      const one = new m.Requests({ space: "review", participant: "ada", token: "x" });
      one._open.set("asked", { to: "coder", isAnswer: () => false, reject: () => undefined });
      one.receive(envelope("participant/status", {}, { correlation_id: ["asked"], said: { text: t, stage: "problem" } }));
    },
    "visible.js:visible": (m, t) => laidOut(m.visible(t)),
    "visible.js:visiblePieces": (m, t) => m.visiblePieces(t),
    ...Object.fromEntries([
      text("sentence", (f, t) => f(t)), text("wholeSentence", (f, t) => f(t)), text("shortened", (f, t) => f(t)), text("inBrief", (f, t) => [{ a: t, [t]: t }, t, [t]].forEach((one) => f(one))),
      
      
      text("answered", (f, t) => [f({ said: { text: t } }), f({})]),
      text("counted", (f, t) => f(2, t)),
    ]),
  };

  // What a member can send many of. Each takes a number.

  const numbers = (count, of) => Array.from({ length: count }, (_, index) => of(index));
  const streamed = async (count, type) => {
    const { conversation, take, draw, end } = await talk();
    const start = take(envelope("reasoning/start", {}));
    take(envelope("stream/open", { stream_id: "s", owner: "coder" }, { from: "gateway" }));
    for (let index = 0; index < count; index += 1) {
      conversation.frame("s", JSON.stringify({ context: start.id, type, value: "**some** text " }));
      draw();
    }
    end();
  };
  const drawn = async (count, of, first = []) => {
    const { take, draw, end } = await talk();
    for (const one of first) take(one);
    for (let index = 0; index < count; index += 1) {
      take(of(index));
      draw();
    }
    end();
  };
  const many = {
    "pieces of one event": async (count) => {
      const parser = new (await load("events.js")).EventParser();
      parser.feed("data: ");
      for (let index = 0; index < 20 * count; index += 1) parser.feed("a".repeat(350));
      parser.feed("\n\n");
    },
    "pieces of an answer": (count) => streamed(count, "token"),
    "pieces of reasoning": (count) => streamed(count, "thinking"),
    "thoughts of a turn": (count) => {
      const start = envelope("reasoning/start", {});
      return drawn(count, () => envelope("reasoning/thought", { reasoning: "I think. ".repeat(20) }, { context: start.id }), [start]);
    },
    "calls of a turn": (count) => drawn(count, (index) => envelope("mcp/request", { method: "tools/call", params: { name: `t${index}`, arguments: { a: "b" } } }), [envelope("reasoning/start", {})]),
    "announced calls of a turn": (count) => {
      const start = envelope("reasoning/start", {});
      return drawn(count, () => envelope("reasoning/thought", { action: "tool", actionInput: { tool: "t", arguments: {} } }, { context: start.id }), [start]);
    },
    "acknowledgements of a chat": (count) => {
      const asked = envelope("chat", { text: "**a** ".repeat(500) });
      return drawn(count, () => envelope("chat/acknowledge", { status: "seen" }, { correlation_id: [asked.id] }), [asked]);
    },
    "answers to one long chat": (count) => {
      const asked = envelope("chat", { text: "a ".repeat(100 * count) });
      return drawn(count, () => envelope("chat", { text: "yes" }, { correlation_id: [asked.id] }), [asked]);
    },
    chats: (count) => drawn(count, () => envelope("chat", { text: "a" })),
    proposals: (count) => drawn(count, (index) => envelope("mcp/proposal", { method: "tools/call", params: { name: `t${index}`, arguments: { a: "b" } } })),
    "requests about one proposal": (count) => {
      const proposal = envelope("mcp/proposal", { method: "tools/call", params: { name: "t" } });
      return drawn(count, () => envelope("mcp/request", {}, { correlation_id: [proposal.id] }), [proposal]);
    },
    "references of an envelope": async (count) => {
      const { Requests } = await load("requests.js");
      const one = new Requests({ space: "review", participant: "ada", token: "x" });
      one._open.set("asked", { to: "coder", isAnswer: () => false });
      one.receive(envelope("chat", {}, { correlation_id: numbers(50 * count, String) }));
      await said(() => [envelope("chat", { text: "a" }, { correlation_id: numbers(50 * count, String), to: numbers(count, String) })]);
    },
    "parts of a result": async (count) => laidOut((await load("arguments.js")).renderResult({ content: numbers(count, () => ({ type: "text", text: "a" })) })),
    "arguments of a call": async (count) => {
      const { Room, renderArguments } = await load("arguments.js");
      const args = Object.fromEntries(numbers(count, (index) => [`key${index}`, { list: numbers(10, String) }]));
      laidOut(renderArguments(args, new Room({ isWhole: true })));
      const one = { keys: ["old", "new"], rows: [["-", "a"], ["+", "b"]], added: 1, removed: 1 };
      const all = Object.fromEntries(numbers(count, (index) => [`edits/${index}`, one]));
      laidOut(renderArguments({ edits: numbers(count, () => ({ old: "a", new: "b", path: "c" })) }, new Room({ isWhole: true }), all));
    },
    "compactions of a participant": async (count) => {
      const { FigureHistory } = await load("figures.js");
      const figures = new FigureHistory(undefined, "review");
      for (let index = 0; index < 4 * count; index += 1) {
        const at = new Date(1_000 * index).toISOString();
        figures.add(view("a", { received_at: at, tokens: index, compaction: { at, freed_tokens: index } }));
      }
    },
    "parts of a pattern": async (count) => (await load("permissions.js")).maySend([{ kind: "*a?".repeat(count) }], "a".repeat(50)),
    "patterns of a member": async (count) => (await load("permissions.js")).maySend(numbers(count, () => ({ kind: ["a/*", "!b"] })), "participant/pin", "coder"),
    "pins, suggestions and parts": async (count) => {
      const root = box();
      const { Detail } = await load("detail.js");
      const [line] = [view("a")];
      const more = Object.fromEntries(["pins", "savings", "parts", "facts", "remarks"].map((name) => [name, numbers(count, () => line[name][0])]));
      const detail = new Detail(root, view("a", more), services("a"));
      root.getBoundingClientRect();
      detail.close();
      root.remove();
    },
  };

  const known = new Map();
  const moduleOf = async (name) => known.get(name) ?? known.set(name, await load(name)).get(name);

  return {
    functions: () => Object.keys(functions),
    many: () => Object.keys(many),
    /** What is slower than linear in the length of the text that a function reads. */
    async measureFunction(key) {
      const module = await moduleOf(key.split(":")[0]);
      const problems = [];
      const run = (one) => functions[key](module, one);
      isLaidOut = false;
      await run("a".repeat(4_096));
      // What is laid out takes milliseconds for each thousand characters, and is made of functions measured here with more.
      const ms = Math.max(await least(run, "a\u200b".repeat(2_048), 2), await least(run, MIXED.repeat(4_096 / MIXED.length), 2));
      const first = ms > 80 ? 128 : ms > 20 ? 256 : ms > 2 ? 1_024 : 4_096;
      const all = (isLaidOut || ms > 2) && !key.startsWith("markdown.js") ? repeated : makers();
      for (const [name, make] of all) {
        const steps = await superlinear(run, make, first);
        if (steps) problems.push(`${JSON.stringify(name)} ${shown(steps)}`);
      }
      return problems;
    },
    /** The same for a regular expression, which may be searched for, replaced, or split at. */
    async measurePattern([source, flags]) {
      const problems = [];
      const expression = new RegExp(source, flags);
      const heads = source.split(/[\\^$.*+?()[\]{}|]+/).filter(Boolean).slice(0, 4);
      const run = (one) => {
        expression.lastIndex = 0;
        expression.test(one);
        one.split(expression);
      };
      for (const [name, make] of makers(heads)) {
        const steps = await superlinear(run, make, 4_096);
        if (steps) problems.push(`${JSON.stringify(name)} ${shown(steps)}`);
      }
      return problems;
    },
    /** What is slower than linear in the number of things that a member sends. */
    async measureMany(name) {
      const steps = await superlinear(many[name], Math.ceil, 16, 1_024);
      return steps ? [shown(steps)] : [];
    },
    /** Functions of known cost, which tell whether the measurement works: with texts just long enough for its clock. */
    async measureKnown() {
      const quadratic = /a+$/;
      const run = (one) => quadratic.test(one);
      const linear = /[a-z]+/;
      return {
        quadratic: Boolean(await superlinear(run, (length) => `${"a".repeat(0.6 * length)}!`, 4_096)),
        linear: Boolean(await superlinear((one) => linear.test(one), (length) => "!".repeat(length), 4_096)),
        cubic: Boolean(await superlinear((one) => /^#\s+(.*?)(?:\s+#+)?\s*$/.test(one), (length) => `# a${" ".repeat(length / 3)}b`, 4_096)),
      };
    },
  };
})()
