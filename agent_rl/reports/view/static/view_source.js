// Where the page's data come from: the server that gave the page, or blocks in the page itself where it is one file.
"use strict";

const byId = (id) => document.getElementById(id);

async function fetchJson(path) {
  const answer = await fetch(path).catch(() => {
    throw new Error("The server does not answer; start agent-rl view again.");
  });
  const content = await answer.json().catch(() => {
    throw new Error("The server's answer broke off; try again.");
  });
  if (!answer.ok) throw new Error(content.error);
  return content;
}

// Answers of the server, always new.
const serverSource = {
  runs: () => fetchJson("api/runs"),
  set: (run, set) => fetchJson(`api/runs/${run}/${set}`),
  episode: (run, set, index) => fetchJson(`api/runs/${run}/${set}/episodes/${index}`),
  search: (run, set, text) => fetchJson(`api/runs/${run}/${set}/search?text=${encodeURIComponent(text)}`),
  task: (id) => fetchJson(`api/tasks?text=${encodeURIComponent(id)}`),
};

async function unpack(node) {
  const bytes = Uint8Array.from(atob(node.textContent), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// The same from blocks of packed JSON, each unpacked once.
function fileSource() {
  const nodes = [...document.querySelectorAll("script[data-set]")];
  const unpacked = new Map();
  const block = (run, set) => {
    const node = nodes.find((node) => node.dataset.run === String(run) && node.dataset.set === set);
    if (!node) throw new Error("This file does not hold that step; open the run itself with agent-rl view.");
    if (!unpacked.has(node)) unpacked.set(node, unpack(node));
    return unpacked.get(node);
  };
  return {
    runs: () => unpack(byId("overview")),
    set: async (run, set) => block(run, set),
    async episode(run, set, index) {
      const record = (await block(run, set)).records[index];
      if (!record) throw new Error("This file does not hold that episode; open the run itself with agent-rl view.");
      return record;
    },
    async search(run, set, text) {
      const wanted = text.toLowerCase();
      const { texts } = await block(run, set);
      return Object.keys(texts).filter((index) => texts[index].includes(wanted)).map(Number);
    },
    async task(id) {
      const found = [];
      for (const { dataset } of nodes) {
        const episodes = (await block(dataset.run, dataset.set)).episodes.filter((each) => each.task_id === id);
        if (episodes.length) found.push({ run: Number(dataset.run), id: dataset.set, episodes });
      }
      return found;
    },
  };
}

const source = byId("overview") ? fileSource() : serverSource;
