"""LangGraph: a graph of the model and the environment, plain and streamed."""

from typing import Any

from common import Episode, main
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph


def to_langchain(row: dict[str, Any]) -> BaseMessage:
    if row["role"] == "tool":
        return ToolMessage(row["content"], tool_call_id=row["tool_call_id"])
    return (SystemMessage if row["role"] == "system" else HumanMessage)(row["content"])


def to_row(message: AIMessage) -> dict[str, Any]:
    import json

    calls = [
        {"id": call["id"], "function": {"name": call["name"], "arguments": json.dumps(call["args"])}}
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.content, "tool_calls": calls}


async def play(episode: Episode) -> None:
    llm = ChatOpenAI(
        model="policy",
        base_url=episode.base_url,
        api_key=episode.key,
        temperature=episode.temperature,
        max_retries=0,
        logprobs=True,
    ).bind_tools(episode.tools)

    async def model(state: MessagesState) -> dict[str, Any]:
        if not episode.stream:
            return {"messages": [await llm.ainvoke(state["messages"])]}
        whole = None
        async for chunk in llm.astream(state["messages"]):
            whole = chunk if whole is None else whole + chunk
        return {"messages": [whole]}

    async def act(state: MessagesState) -> dict[str, Any]:
        rows = await episode.step(to_row(state["messages"][-1]))
        return {"messages": [to_langchain(row) for row in rows]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("act", act)
    graph.add_edge(START, "model")
    graph.add_edge("model", "act")
    graph.add_conditional_edges("act", lambda _state: END if episode.is_over else "model")
    messages = [to_langchain(row) for row in episode.messages]
    await graph.compile().ainvoke({"messages": messages}, {"recursion_limit": 200})


main(play)
