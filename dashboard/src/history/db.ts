// Conversations in this browser (IndexedDB), and in memory where it refuses. No node ever gets them to keep.

import type { Conversation, Message } from "./types";

const NAME = "exo";
const VERSION = 1;
/** A browser that does not even answer is treated like one that refuses. */
const OPEN_MS = 4000;
/** Messages in one transaction. */
const BATCH = 2000;

export interface History {
  readonly isKept: boolean;
  conversations(): Promise<Conversation[]>;
  messages(conversation: string): Promise<Message[]>;
  put(conversations: Conversation[], messages: Message[]): Promise<void>;
  remove(conversation: string): Promise<void>;
  /** Ids of conversations with a message that says so; the text is in lower case. */
  search(text: string, signal: AbortSignal): Promise<Set<string>>;
}

/** Opens what there is; never fails. */
export async function openHistory(): Promise<History> {
  try {
    return new Kept(await openDatabase());
  } catch {
    return new InMemory();
  }
}

function openDatabase(): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error("no answer")), OPEN_MS);
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("blocked"));
  });
}

class Kept implements History {
  readonly isKept = true;

  constructor(private readonly db: IDBDatabase) {
    // Another tab with a newer page wants to change the database: it may.
    db.onversionchange = () => db.close();
  }

  conversations(): Promise<Conversation[]> {
    return result(this.db.transaction("conversations").objectStore("conversations").getAll());
  }

  messages(conversation: string): Promise<Message[]> {
    return result(this.db.transaction("messages").objectStore("messages").index("conversation").getAll(conversation));
  }

  async put(conversations: Conversation[], messages: Message[]): Promise<void> {
    for (let from = 0; from === 0 || from < messages.length; from += BATCH) {
      const change = this.db.transaction(["conversations", "messages"], "readwrite");
      if (from === 0) for (const one of conversations) change.objectStore("conversations").put(plain(one));
      for (const one of messages.slice(from, from + BATCH)) change.objectStore("messages").put(plain(one));
      await finished(change);
    }
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
  private readonly all = { conversations: new Map<string, Conversation>(), messages: new Map<string, Message>() };

  async conversations(): Promise<Conversation[]> {
    return [...this.all.conversations.values()];
  }

  async messages(conversation: string): Promise<Message[]> {
    return [...this.all.messages.values()].filter((one) => one.conversation === conversation);
  }

  async put(conversations: Conversation[], messages: Message[]): Promise<void> {
    for (const one of conversations) this.all.conversations.set(one.id, one);
    for (const one of messages) this.all.messages.set(one.id, one);
  }

  async remove(conversation: string): Promise<void> {
    this.all.conversations.delete(conversation);
    for (const one of await this.messages(conversation)) this.all.messages.delete(one.id);
  }

  async search(text: string): Promise<Set<string>> {
    return new Set([...this.all.messages.values()].filter((one) => one.content.toLowerCase().includes(text)).map((one) => one.conversation));
  }
}

/** Without anything that cannot be cloned. */
const plain = <T>(value: T): T => JSON.parse(JSON.stringify(value)) as T;

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function finished(change: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    change.oncomplete = () => resolve();
    change.onerror = change.onabort = () => reject(change.error ?? new Error("the change was given up"));
  });
}
