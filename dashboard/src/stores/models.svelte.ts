// Models that can be asked for: with files and places for the owner, by name for everybody else.

import { ask, messageOf } from "../api/client";
import type { InstanceView, ModelList, ModelView } from "../api/types";
import { printable } from "../lib/format";
import { session } from "./session.svelte";

/** What a request for a model says: its name, or its id where the name means another one. */
export const requestName = (model: ModelView) => (model.needs_id ? model.id : model.name);

export class ModelStore {
  /** What a request may say as its model: each once. */
  names = $state.raw<string[]>([]);
  list = $state.raw<ModelView[] | null>(null);
  problem = $state("");

  async load(): Promise<void> {
    try {
      if (session.isOwner) {
        this.list = await ask<ModelView[]>("/exo/v1/models");
        this.names = [...new Set(this.list.map(requestName))];
      } else {
        this.names = [...new Set((await ask<ModelList>("/v1/models")).data.map((model) => model.id))];
      }
      this.problem = "";
    } catch (error) {
      this.problem = messageOf(error);
    }
  }

  /** What a request for a model that is placed says. */
  placed(instance: InstanceView): string {
    const model = this.list?.find((one) => one.id === instance.model_id);
    return model ? requestName(model) : instance.model;
  }

  /** How it is shown: an id has the name of its model in front. */
  label(name: string): string {
    const model = this.list?.find((one) => one.id === name);
    return printable(model ? `${model.name} (${name.slice(0, 12)})` : name, 80);
  }
}

export const models = new ModelStore();
