// Drives the Node client of the 5.x protocol: one command per JSON line of standard input, all of them concurrently.
'use strict';

const readline = require('node:readline');
const {
  ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const {
  FilterType, TransactionResolution,
} = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const clients = new Map();
const transactions = new Map();
const views = [];

// The client logs to a file unless it is given a logger; standard output is for JSON lines alone.
const logger = {
  debug() {},
  info() {},
  warn: (...parts) => console.error('WARN', ...parts),
  error: (...parts) => console.error('ERROR', ...parts),
  close() {},
};

function writeLine(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function pause(ms) {
  return new Promise(resolve => setTimeout(resolve, ms));
}

function describe(view) {
  return {
    received_ms: Date.now(),
    message_id: view.messageId,
    topic: view.topic,
    body: view.body.toString(),
    tag: view.tag || null,
    keys: view.keys,
    message_group: view.messageGroup || null,
    properties: Object.fromEntries(view.properties),
    deliver_at_ms: view.deliveryTimestamp ? view.deliveryTimestamp.getTime() : null,
    attempt: view.deliveryAttempt,
  };
}

async function start(name, client) {
  await client.startup();
  clients.set(name, client);
  return {};
}

function find(name) {
  const client = clients.get(name);
  if (!client) throw new Error(`no client ${name}`);
  return client;
}

function subscriptions(asked) {
  const filter = asked.sql
    ? new FilterExpression(asked.sql, FilterType.SQL)
    : new FilterExpression(asked.tags || '*');
  return new Map([[ asked.topic, filter ]]);
}

function options(asked) {
  const sessionCredentials = asked.user ? { accessKey: asked.user, accessSecret: asked.secret } : undefined;
  return { endpoints: asked.endpoints, namespace: '', logger, sessionCredentials };
}

const commands = {
  async start_producer(asked) {
    const checker = {
      async check(view) {
        writeLine({ ...describe(view), event: 'check', producer: asked.name });
        return {
          commit: TransactionResolution.COMMIT,
          rollback: TransactionResolution.ROLLBACK,
          unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
        }[asked.checked_as];
      },
    };
    return start(asked.name, new Producer({
      ...options(asked), topics: asked.topics, checker: asked.checked_as ? checker : undefined,
    }));
  },

  async send(asked) {
    const producer = find(asked.producer);
    const message = {
      topic: asked.topic,
      body: Buffer.from(asked.body),
      tag: asked.tag,
      keys: asked.keys,
      messageGroup: asked.message_group,
      deliveryTimestamp: asked.deliver_at_ms ? new Date(asked.deliver_at_ms) : undefined,
      properties: new Map(Object.entries(asked.properties || {})),
    };
    let receipt;
    if (asked.transaction) {
      const transaction = producer.beginTransaction();
      receipt = await producer.send(message, transaction);
      transactions.set(asked.transaction, transaction);
    } else {
      receipt = await producer.send(message);
    }
    return { message_id: receipt.messageId, recall_handle: receipt.recallHandle };
  },

  async end_transaction(asked) {
    const transaction = transactions.get(asked.transaction);
    await (asked.resolution === 'commit' ? transaction.commit() : transaction.rollback());
    return {};
  },

  async recall(asked) {
    const receipt = await find(asked.producer).recallMessage(asked.topic, asked.handle);
    return { message_id: receipt.messageId };
  },

  async start_simple(asked) {
    return start(asked.name, new SimpleConsumer({
      ...options(asked),
      consumerGroup: asked.group,
      subscriptions: subscriptions(asked),
      awaitDuration: asked.await_s * 1000,
    }));
  },

  async receive(asked) {
    const received = await find(asked.consumer).receive(asked.count, asked.invisible_s * 1000);
    return { messages: received.map(view => ({ ...describe(view), view: views.push(view) - 1 })) };
  },

  async ack(asked) {
    await find(asked.consumer).ack(views[asked.view]);
    return {};
  },

  async change(asked) {
    await find(asked.consumer).changeInvisibleDuration(views[asked.view], asked.invisible_s * 1000);
    return {};
  },

  async start_push(asked) {
    return start(asked.name, new PushConsumer({
      ...options(asked),
      consumerGroup: asked.group,
      subscriptions: subscriptions(asked),
      messageListener: {
        async consume(view) {
          writeLine({ ...describe(view), event: 'message', consumer: asked.name });
          await pause(asked.busy_ms || 0);
          return view.deliveryAttempt <= (asked.failures || 0) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        },
      },
    }));
  },

  async stop(asked) {
    const client = find(asked.name);
    clients.delete(asked.name);
    await client.shutdown();
    return {};
  },
};

async function answer(request) {
  const line = { reply: request.request };
  try {
    line.result = await commands[request.command](request.arguments);
  } catch (failure) {
    console.error(failure);
    line.error = { type: failure.name, code: failure.code ?? -1, message: failure.message };
  }
  writeLine(line);
}

const lines = readline.createInterface({ input: process.stdin });
lines.on('line', line => answer(JSON.parse(line)));
lines.on('close', async () => {
  const ends = await Promise.allSettled([ ...clients.values() ].map(client => client.shutdown()));
  const failures = ends.filter(end => end.status === 'rejected');
  failures.forEach(failure => console.error('cannot stop:', failure.reason));
  // The client leaves sockets and timers behind.
  process.exit(failures.length ? 1 : 0);
});
writeLine({ event: 'ready' });
