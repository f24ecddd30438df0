"""A process that is killed again and again while it chats and saves; run by `test_killed_chats`.

    python -m tests.app.killed_chats FOLDER SEED KILLS

torch is loaded once; each life is a fork of this process, so that a hundred of them take seconds.
A life opens the chats and the blocks of the one before, says something in a random chat, and so on,
until it is killed at a random moment. What it has stored it tells through a pipe first. Afterwards
another fork looks: no message is lost, and every reply that kept blocks give is the one that an
engine without any gives.
"""

import os
import random
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from app.conversation import Conversation, ConversationId, Message
from app.prompting import prompt_messages
from app.storage import ConversationStore
from inference.config import SamplingParams
from inference.engine import Engine
from inference.model.loader import LoadedModel
from inference.request import StepOutput
from tests.inference.tiny_engine import make_engine, make_loaded

NUM_CHATS = 4
LONGEST_LIFE_S = 0.25
GREEDY = SamplingParams(temperature=0.0, max_tokens=10)


def open_store(folder: Path) -> ConversationStore:
    return ConversationStore(folder / "chats.db")


def open_engine(loaded: LoadedModel, folder: Path | None) -> Engine:
    cache = None if folder is None else str(folder / "kv")
    # Lives are short: none of it goes into measuring what guesses would cost.
    return make_engine(loaded, cache_dir=cache, context_tokens=2048, guess="off")


def chat_of(store: ConversationStore, number: int) -> Conversation:
    name = ConversationId(f"chat {number}")
    chat = store.load(name)
    if chat is None:
        now = time.time()
        chat = Conversation(name, str(name), created_at=now, updated_at=now)
        store.add_conversation(chat)
    return chat


def answer(engine: Engine, path: list[Message], key: str) -> StepOutput:
    prompt = prompt_messages(path, system_prompt="Be kind to all birds.", key=key)
    messages = tuple(message.chat for message in prompt)
    name = path[0].conversation_id
    return list(engine.generate(conversation_id=name, messages=messages, params=GREEDY))[-1]


def live(loaded: LoadedModel, folder: Path, dice: random.Random, pipe: int) -> None:
    """Chat until the end comes."""
    store, engine = open_store(folder), open_engine(loaded, folder)
    key = engine.info.fingerprint
    while True:
        chat = chat_of(store, dice.randrange(NUM_CHATS))
        # A chat that is long enough gets another branch from its beginning.
        parent = None if len(chat.path()) > 8 else chat.leaf_id
        text = f"{dice.random()} is a number that was said. " * dice.randint(1, 3)
        question = store.add_message(chat.id, parent_id=parent, role="user", content=text)
        os.write(pipe, struct.pack("<q", question.id))
        chat = chat.with_message(question, as_leaf=True)
        output = answer(engine, chat.path(), key)
        reply = store.add_message(
            chat.id, parent_id=question.id, role="assistant", content="", status="streaming"
        )
        ids = output.reply_token_ids
        text = bytes(i % 251 for i in ids or ()).hex()
        store.update_message(
            replace(reply, content=text, status="complete", token_ids=ids, model_key=key)
        )
        os.write(pipe, struct.pack("<q", reply.id))


def look(loaded: LoadedModel, folder: Path, told: set[int]) -> None:
    """Compare what is kept with the truth."""
    store = open_store(folder)
    kept, cold = open_engine(loaded, folder), open_engine(loaded, None)
    key = kept.info.fingerprint
    known: set[int] = set()
    reused = 0
    for number in range(NUM_CHATS):
        chat = chat_of(store, number)
        known |= set(chat.messages)
        path = chat.path()
        if not path:
            continue
        if path[-1].role == "user":
            path.append(replace(path[-1], role="assistant", content=""))
        path = path[:-1]
        reply = answer(kept, path, key)
        if reply.reply_token_ids != answer(cold, path, key).reply_token_ids:
            raise AssertionError(f"{chat.id}: kept blocks gave another reply")
        reused += reply.metrics.reused_disk_tokens
        kept.check_integrity()
    if not reused and len(told) > 4 * NUM_CHATS:
        raise AssertionError("nothing that was kept was reused")
    if lost := told - known:
        raise AssertionError(f"messages were stored and are lost: {sorted(lost)}")


def in_fork(work: Callable[[], None]) -> int:
    """Run `work` in a process of its own; its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001  # whatever it was, the fork must end here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    folder, seed, kills = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    folder.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    dice = random.Random(seed)
    loaded = make_loaded(context_tokens=2048)
    told: set[int] = set()
    for number in range(kills):
        reader, writer = os.pipe()
        life_seed = dice.random()
        pid = in_fork(partial(live, loaded, folder, random.Random(life_seed), writer))
        os.close(writer)
        time.sleep(dice.uniform(0.0, LONGEST_LIFE_S))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(reader, "rb") as pipe:
            data = pipe.read()
        told |= {value for (value,) in struct.iter_unpack("<q", data[: len(data) // 8 * 8])}
        if number % 10 == 9 or number == kills - 1:
            _, status = os.waitpid(in_fork(partial(look, loaded, folder, set(told))), 0)
            if status:
                sys.stderr.write(f"after kill {number + 1}\n")
                return 1
    num_files = sum(1 for _ in folder.rglob("*.kv"))
    sys.stdout.write(f"{len(told)} {num_files}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
