// Models that can be asked for: with files and places for the owner, by name for everybody else.

import { ask } from "../api/client";
import type { ModelList, ModelView } from "../api/types";
import { session } from "./session.svelte";

class ModelStore {
  /** Names that a request may have. */
  names = $state.raw<string[]>([]);
  list = $state.raw<ModelView[] | null>(null);
  problem = $state("");

  async load(): Promise<void> {
    try {
      if (session.isOwner) {
        this.list = await ask<ModelView[]>("/exo/v1/models");
        this.names = this.list.map((model) => model.name);
      } else {
        this.names = (await ask<ModelList>("/v1/models")).data.map((model) => model.id);
      }
      this.problem = "";
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
    }
  }
}

export const models = new ModelStore();
