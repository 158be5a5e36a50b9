"""OpenAI's own client, validating every answer strictly, is an oracle of the protocol."""

import openai
import pytest

pytestmark = pytest.mark.anyio
HELLO = [{"role": "user", "content": "hello"}]


def client_of(world, *, strict):
    return openai.AsyncOpenAI(
        base_url=f"{world.url}/v1",
        api_key="none",
        max_retries=0,
        _strict_response_validation=strict,
    )


@pytest.fixture
async def openai_client(world):
    async with client_of(world, strict=True) as client:
        yield client


@pytest.fixture
async def lax_client(world):
    """For streams of completions: the strict one refuses the protocol's own null reasons there."""
    async with client_of(world, strict=False) as client:
        yield client


async def test_models(openai_client):
    listed = await openai_client.models.list()
    assert [model.id for model in listed.data] == ["pair", "pair-alias"]
    one = await openai_client.models.retrieve("pair")
    assert (one.id, one.root, one.max_model_len) == ("pair", "fencepost/pair", 96)


async def test_completion(openai_client):
    answer = await openai_client.completions.create(
        model="pair", prompt=["x", "y"], n=2, logprobs=2, max_tokens=5, seed=3, echo=False
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens == 20
    assert len(answer.choices[3].logprobs.tokens) == 5


async def test_completion_stream(lax_client):
    chunks = await lax_client.completions.create(
        model="pair",
        prompt="x",
        max_tokens=5,
        logprobs=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    seen = [chunk async for chunk in chunks]
    assert seen[-1].usage.completion_tokens == 5
    assert "".join(c.choices[0].text for c in seen[:-1]) == "The river runs down to"


async def test_chat(openai_client):
    answer = await openai_client.chat.completions.create(
        model="pair",
        messages=HELLO,
        logprobs=True,
        top_logprobs=2,
        max_completion_tokens=5,
        n=2,
        stop=["down"],
    )
    choice = answer.choices[1]
    assert choice.message.content == "The river runs "
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert len(choice.logprobs.content[0].top_logprobs) == 2


async def test_chat_stream_put_together_by_the_client(openai_client):
    async with openai_client.chat.completions.stream(
        model="pair", messages=HELLO, stop="down", stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type async for event in stream]
        whole = await stream.get_final_completion()
    assert "content.delta" in kinds
    assert whole.choices[0].message.content == "The river runs "
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == 4


async def test_errors_have_the_clients_types(openai_client):
    with pytest.raises(openai.NotFoundError) as missing:
        await openai_client.completions.create(model="nobody", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        await openai_client.completions.create(model="pair", prompt="x", temperature=3)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        await openai_client.completions.create(model="pair", prompt="x " * 200)
    assert long.value.code == "context_length_exceeded"


async def test_the_request_id_is_the_servers(openai_client):
    answer = await openai_client.completions.with_raw_response.create(
        model="pair", prompt="x", extra_headers={"x-request-id": "my-id.1"}
    )
    assert answer.headers["x-request-id"] == answer.request_id == "my-id.1"


async def test_an_error_event_raises_in_the_client(world, lax_client):
    world.runner.breaks_at[world.prompt_ids("fails late ")] = 2
    chunks = await lax_client.completions.create(
        model="pair", prompt="fails late ", max_tokens=40, stream=True
    )
    with pytest.raises(openai.APIError, match="gave no numbers"):
        async for _chunk in chunks:
            pass
