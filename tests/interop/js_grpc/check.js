// Calls the methods of tests/support/http2_server.py with grpc-js. Messages are plain bytes, so no generated code is needed.
//
// node check.js ADDRESS [CERTIFICATE]: makes calls of all kinds, with TLS if there is a certificate, and prints "ok".
'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const grpc = require('@grpc/grpc-js');

const same = (bytes) => bytes;
const method = (name, requestStream, responseStream) => ({
  path: '/test.Service/' + name,
  requestStream,
  responseStream,
  requestSerialize: same,
  requestDeserialize: same,
  responseSerialize: same,
  responseDeserialize: same,
});
const Client = grpc.makeGenericClientConstructor(
  {
    Echo: method('Echo', false, false),
    Later: method('Later', false, false),
    Wait: method('Wait', false, false),
    Fail: method('Fail', false, false),
    Metadata: method('Metadata', false, false),
    Unknown: method('Unknown', false, false),
    Count: method('Count', false, true),
    Flood: method('Flood', false, true),
    Chat: method('Chat', true, true),
  },
  'test.Service',
);

// Returns {answer} or {error}.
function unary(client, name, message, options = {}, metadata = new grpc.Metadata()) {
  return new Promise((resolve) => {
    client[name](message, metadata, options, (error, answer) => resolve({ error, answer }));
  });
}

function statusOf(stream) {
  return new Promise((resolve) => {
    stream.on('error', () => {}); // the status says it
    stream.on('status', resolve);
  });
}

async function checkUnary(client) {
  for (const size of [0, 1, 16379, 16380, 100000, 4 << 20]) {
    const message = Buffer.alloc(size, 'x');
    const { error, answer } = await unary(client, 'Echo', message);
    assert.ifError(error);
    assert(answer.equals(message), `echo of ${size} bytes`);
  }
  const numbers = [...Array(2000).keys()].map((number) => Buffer.from(String(number)));
  const answers = await Promise.all(numbers.map((message) => unary(client, 'Later', message)));
  answers.forEach(({ error, answer }, number) => {
    assert.ifError(error);
    assert(answer.equals(numbers[number]));
  });
  const metadata = new grpc.Metadata();
  metadata.set('x-mq-client-id', 'host@1@2');
  const { answer } = await unary(client, 'Metadata', Buffer.from('x-mq-client-id'), {}, metadata);
  assert.strictEqual(answer.toString(), 'host@1@2 -1');
}

async function checkStatuses(client) {
  const failed = (await unary(client, 'Fail', Buffer.from('9'))).error;
  assert.strictEqual(failed.code, grpc.status.FAILED_PRECONDITION);
  assert.strictEqual(failed.details, 'as asked: ü%\n.');
  assert.strictEqual((await unary(client, 'Unknown', Buffer.alloc(0))).error.code, grpc.status.UNIMPLEMENTED);
  const late = (await unary(client, 'Wait', Buffer.alloc(0), { deadline: Date.now() + 200 })).error;
  assert.strictEqual(late.code, grpc.status.DEADLINE_EXCEEDED);
}

async function checkStreams(client) {
  const stream = client.Count(Buffer.from('3000'));
  let count = 0;
  stream.on('data', (message) => assert.strictEqual(message.toString(), String(count++)));
  const status = await statusOf(stream);
  assert.strictEqual(status.code, grpc.status.OK);
  assert.strictEqual(count, 3000);
  assert.deepStrictEqual(status.metadata.get('x-count'), ['3000']);

  const chat = client.Chat();
  const ended = statusOf(chat);
  const answers = chat[Symbol.asyncIterator]();
  for (let number = 0; number < 200; number++) {
    const message = Buffer.alloc(number * 500, number);
    chat.write(message);
    assert((await answers.next()).value.equals(message), `chat message ${number}`);
  }
  chat.end();
  assert((await answers.next()).done);
  assert.strictEqual((await ended).code, grpc.status.OK);
}

// 30 MB, many times the windows, to a reader that pauses. Then a reader that leaves: the server must notice.
async function checkFlowControl(client) {
  const flood = client.Flood(Buffer.from('3000'));
  const ended = statusOf(flood);
  let bytes = 0;
  for await (const message of flood) {
    if (bytes % 5000000 === 0) await new Promise((resolve) => setTimeout(resolve, 20));
    bytes += message.length;
  }
  assert.strictEqual(bytes, 30000000);
  assert.strictEqual((await ended).code, grpc.status.OK);

  const abandoned = client.Flood(Buffer.from('1000000'));
  const cancelled = statusOf(abandoned);
  abandoned.once('data', () => abandoned.cancel());
  assert.strictEqual((await cancelled).code, grpc.status.CANCELLED);
}

async function main(address, certificate) {
  const security = certificate
    ? grpc.credentials.createSsl(fs.readFileSync(certificate))
    : grpc.credentials.createInsecure();
  const client = new Client(address, security, {
    'grpc.max_receive_message_length': -1,
    'grpc.ssl_target_name_override': 'localhost',
  });
  await checkUnary(client);
  await checkStatuses(client);
  await checkStreams(client);
  await checkFlowControl(client);
  assert.strictEqual((await unary(client, 'Echo', Buffer.from('end'))).answer.toString(), 'end');
  client.close();
  console.log('ok');
}

main(process.argv[2], process.argv[3]).catch((error) => {
  console.error(error);
  process.exit(1);
});
