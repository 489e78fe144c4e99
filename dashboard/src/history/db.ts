// Conversations in this browser (IndexedDB), and in memory where it refuses. No node ever gets them to keep.

import { t } from "../text";
import type { Conversation, Message } from "./types";

const NAME = "exo";
const VERSION = 1;
/** A browser that does not even answer is treated like one that refuses. */
const OPEN_MS = 4000;
export interface History {
  readonly isKept: boolean;
  /** False once the browser has taken it away: what is opened anew is there. */
  readonly isOpen: boolean;
  conversations(): Promise<Conversation[]>;
  messages(conversation: string): Promise<Message[]>;
  message(id: string): Promise<Message | undefined>;
  /** Keeps all of it or nothing. Messages of a conversation that was removed are not kept: nobody would find them again. */
  put(conversations: Conversation[], messages: Message[]): Promise<void>;
  remove(conversation: string): Promise<void>;
  /** Ids of conversations with a message that says so; the text is in lower case. */
  search(text: string, signal: AbortSignal): Promise<Set<string>>;
}

/** Opens what there is; never fails. */
export async function openHistory(): Promise<History> {
  try {
    const kept = new Kept(await openDatabase());
    void kept.sweep().catch(() => {});
    return kept;
  } catch {
    return new InMemory();
  }
}

function openDatabase(): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(t.errors.no_storage)), OPEN_MS);
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error(t.errors.storage_blocked));
  });
}

class Kept implements History {
  readonly isKept = true;
  isOpen = true;

  constructor(private readonly db: IDBDatabase) {
    // Another tab with a newer page wants to change the database, or somebody deletes what this site keeps: they may.
    db.onversionchange = () => (db.close(), (this.isOpen = false));
    db.onclose = () => (this.isOpen = false);
  }

  conversations(): Promise<Conversation[]> {
    return result(this.db.transaction("conversations").objectStore("conversations").getAll());
  }

  messages(conversation: string): Promise<Message[]> {
    return result(this.db.transaction("messages").objectStore("messages").index("conversation").getAll(conversation));
  }

  message(id: string): Promise<Message | undefined> {
    return result(this.db.transaction("messages").objectStore("messages").get(id));
  }

  async put(conversations: Conversation[], messages: Message[]): Promise<void> {
    const change = this.db.transaction(["conversations", "messages"], "readwrite");
    const [all, kept] = [change.objectStore("conversations"), change.objectStore("messages")];
    for (const one of conversations) all.put(one);
    const ofIt = new Map<string, Message[]>();
    for (const one of messages) ofIt.get(one.conversation)?.push(one) ?? ofIt.set(one.conversation, [one]);
    for (const conversation of ofIt.keys()) {
      const known = all.getKey(conversation);
      known.onsuccess = () => {
        if (known.result !== undefined) for (const one of ofIt.get(conversation)!) kept.put(one);
      };
    }
    await finished(change);
  }

  /** Removes messages whose conversation is gone. */
  async sweep(): Promise<void> {
    const change = this.db.transaction(["conversations", "messages"], "readwrite");
    const messages = change.objectStore("messages");
    const known = change.objectStore("conversations").getAllKeys();
    known.onsuccess = () => {
      const ids = new Set(known.result);
      const each = messages.index("conversation").openKeyCursor(null, "nextunique");
      each.onsuccess = () => {
        if (!each.result) return;
        const { key } = each.result;
        if (!ids.has(key)) {
          const orphans = messages.index("conversation").getAllKeys(key);
          orphans.onsuccess = () => orphans.result.forEach((orphan) => messages.delete(orphan));
        }
        each.result.continue();
      };
    };
    await finished(change);
  }

  async remove(conversation: string): Promise<void> {
    const change = this.db.transaction(["conversations", "messages"], "readwrite");
    change.objectStore("conversations").delete(conversation);
    const messages = change.objectStore("messages");
    const keys = messages.index("conversation").getAllKeys(conversation);
    keys.onsuccess = () => keys.result.forEach((key) => messages.delete(key));
    await finished(change);
  }

  search(text: string, signal: AbortSignal): Promise<Set<string>> {
    const found = new Set<string>();
    return new Promise((resolve, reject) => {
      const cursor = this.db.transaction("messages").objectStore("messages").openCursor();
      cursor.onerror = () => reject(cursor.error);
      cursor.onsuccess = () => {
        const at = cursor.result;
        if (!at || signal.aborted) return resolve(found);
        const message = at.value as Message;
        if (message.content.toLowerCase().includes(text)) found.add(message.conversation);
        at.continue();
      };
    });
  }
}

class InMemory implements History {
  readonly isKept = false;
  readonly isOpen = true;
  private readonly all = { conversations: new Map<string, Conversation>(), messages: new Map<string, Message>() };

  async conversations(): Promise<Conversation[]> {
    return [...this.all.conversations.values()];
  }

  async messages(conversation: string): Promise<Message[]> {
    return [...this.all.messages.values()].filter((one) => one.conversation === conversation);
  }

  async message(id: string): Promise<Message | undefined> {
    return this.all.messages.get(id);
  }

  async put(conversations: Conversation[], messages: Message[]): Promise<void> {
    for (const one of conversations) this.all.conversations.set(one.id, one);
    for (const one of messages) if (this.all.conversations.has(one.conversation)) this.all.messages.set(one.id, one);
  }

  async remove(conversation: string): Promise<void> {
    this.all.conversations.delete(conversation);
    for (const one of await this.messages(conversation)) this.all.messages.delete(one.id);
  }

  async search(text: string): Promise<Set<string>> {
    return new Set([...this.all.messages.values()].filter((one) => one.content.toLowerCase().includes(text)).map((one) => one.conversation));
  }
}

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function finished(change: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    change.oncomplete = () => resolve();
    change.onerror = change.onabort = () => reject(change.error ?? new Error(t.errors.storage_undone));
  });
}
