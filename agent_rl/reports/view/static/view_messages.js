// Messages of an episode: what goes into tools and comes out of them is folded.
// Everything from a file becomes text nodes; nothing is ever read as HTML.
"use strict";

function fold(summary, content, css = "") {
  return el("details", { class: css }, el("summary", {}, ...summary), el("pre", {}, content));
}

// The start of a text on one line.
function preview(text, most = 90) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most)}…` : line;
}

function messageNode(message) {
  const node = el("article", { class: `message ${message.role}` });
  const role = el("span", { class: "role" }, message.name ? `${message.role} ${message.name}` : message.role);
  if (message.role === "tool" || message.role === "system") {
    node.append(fold([role, soft(preview(message.content))], message.content));
    return node;
  }
  node.append(role);
  if (message.reasoning) node.append(fold(["thought", soft(preview(message.reasoning))], message.reasoning));
  if (message.content) node.append(el("pre", {}, message.content));
  for (const call of message.tool_calls || []) node.append(callNode(call));
  for (const error of message.tool_errors || []) node.append(el("p", { class: "bad" }, error));
  if (message.info) node.append(fold(["noted by the environment"], JSON.stringify(message.info, null, 2), "info"));
  return node;
}

function callNode(call) {
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));
  const shown = ([name, value]) => [el("dt", {}, name), el("dd", {}, el("pre", {}, text(value)))];
  const brief = preview(Object.values(call.arguments).map(text).join(", "));
  const summary = el("summary", {}, el("b", {}, call.name), soft(brief));
  return el("details", { class: "call" }, summary, el("dl", {}, ...Object.entries(call.arguments).flatMap(shown)));
}
