// A billing agent in JavaScript whose tool is broken. Nothing of loopguard is in it: only its address and its key.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.GATEWAY_URL, apiKey: process.env.GATEWAY_KEY });
const model = process.env.MODEL ?? "gpt-4o-mini";
const tools = [{
  type: "function",
  function: {
    name: "fetch_invoice",
    description: "Read an invoice.",
    parameters: { type: "object", properties: { invoice_id: { type: "string" } } },
  },
}];

const messages = [{ role: "user", content: "Is invoice INV-2291 due today?" }];
try {
  for (let round = 1; round <= 50; round++) {
    const { choices: [{ message }] } = await client.chat.completions.create({ model, messages, tools, max_tokens: 500 });
    messages.push(message);
    if (!message.tool_calls) {
      console.log(`Answer: ${message.content}`);
      break;
    }
    for (const call of message.tool_calls) {
      console.log(`${call.function.name}(${call.function.arguments}) runs: timed out`);
      messages.push({ role: "tool", tool_call_id: call.id, content: "Error: 504 Gateway Timeout" });
    }
  }
} catch (error) {
  if (error.status !== 402) throw error;
  console.log(`No money left: ${error.error?.message}`);
}
