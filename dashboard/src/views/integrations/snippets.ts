// Programs that use this cluster, as text to copy. Pure; names of models are quoted for each language.

export type Snippet = { name: string; text: string };

export function snippets(origin: string, model: string, key: string): Snippet[] {
  const quoted = JSON.stringify(model);
  const shell = JSON.stringify({ model, messages: [{ role: "user", content: "Hello!" }] }).replaceAll("'", "'\\''");
  return [
    { name: "curl", text: `curl ${origin}/v1/chat/completions \\\n  -H 'Authorization: Bearer ${key}' \\\n  -H 'Content-Type: application/json' \\\n  -d '${shell}'` },
    {
      name: "Python (pip install openai)",
      text: `from openai import OpenAI\n\nclient = OpenAI(base_url="${origin}/v1", api_key="${key}")\nanswer = client.chat.completions.create(\n    model=${quoted},\n    messages=[{"role": "user", "content": "Hello!"}],\n)\nprint(answer.choices[0].message.content)`,
    },
    {
      name: "JavaScript (npm install openai)",
      text: `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: "${origin}/v1", apiKey: "${key}" });\nconst answer = await client.chat.completions.create({\n  model: ${quoted},\n  messages: [{ role: "user", content: "Hello!" }],\n});\nconsole.log(answer.choices[0].message.content);`,
    },
    {
      name: "Anthropic (pip install anthropic)",
      text: `from anthropic import Anthropic\n\nclient = Anthropic(base_url="${origin}", api_key="${key}")\nanswer = client.messages.create(\n    model=${quoted},\n    max_tokens=256,\n    messages=[{"role": "user", "content": "Hello!"}],\n)\nprint(answer.content[0].text)`,
    },
    { name: "Claude Code", text: `ANTHROPIC_BASE_URL=${origin} ANTHROPIC_AUTH_TOKEN=${key} claude --model ${shellWord(model)}` },
    { name: "aider", text: `OPENAI_API_BASE=${origin}/v1 OPENAI_API_KEY=${key} aider --model ${shellWord(`openai/${model}`)}` },
    { name: "Continue (config.yaml)", text: `models:\n  - name: exo\n    provider: openai\n    model: ${quoted}\n    apiBase: ${origin}/v1\n    apiKey: ${key}` },
    { name: "Ollama", text: `curl ${origin}/api/chat \\\n  -H 'Authorization: Bearer ${key}' \\\n  -d '${shell.slice(0, -1)},"stream":false}'` },
  ];
}

/** Safe in a POSIX shell. */
export const shellWord = (word: string): string => (/^[\w./:@-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
