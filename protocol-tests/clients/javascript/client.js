// Produces and consumes in a group through a restart of the broker; see ../README.md.
'use strict'
const fs = require('fs')
const { Kafka, logLevel, CompressionTypes } = require('kafkajs')

const [bootstrap, restarted] = process.argv.slice(2)
const topic = `javascript-${process.pid}-${Date.now()}`
const deadline = Date.now() + 150_000
const kafka = new Kafka({
  brokers: [bootstrap],
  logLevel: logLevel.NOTHING,
  retry: { retries: 30, initialRetryTime: 100, maxRetryTime: 1000 },
})
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

function check(condition, what) {
  if (condition) return
  console.error(what)
  process.exit(1)
}

async function until(condition, what) {
  while (!condition()) {
    check(Date.now() < deadline, what())
    await sleep(20)
  }
}

async function member(each) {
  const consumer = kafka.consumer({ groupId: `${topic}-group`, sessionTimeout: 10_000 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({ autoCommitInterval: 200, eachMessage: async (message) => each(message) })
  return consumer
}

// Sends records until 500 after the restart and returns how many there are.
async function produce(producer) {
  let next = 0
  let left = 500
  let halfway = false
  while (left > 0) {
    const messages = []
    for (let i = 0; i < 10; i++, next++) messages.push({ key: `key${next % 50}`, value: `value${next}` })
    await producer.send({ topic, acks: -1, compression: CompressionTypes.GZIP, messages })
    if (!halfway && next >= 500) {
      halfway = true
      console.log('halfway')
    }
    if (fs.existsSync(restarted)) left -= 10
    check(Date.now() < deadline, 'the restart does not come')
    await sleep(2)
  }
  return next
}

async function main() {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 6 }], waitForLeaders: true })
  await admin.disconnect()
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()

  const seen = new Set()
  const places = new Set()
  const consumer = await member(({ partition, message }) => {
    const value = message.value.toString()
    const place = `${partition}/${message.offset}`
    check(places.has(place) || !seen.has(value), `${value} is in the log twice`)
    places.add(place)
    seen.add(value)
  })
  const produced = await produce(producer)
  await until(() => seen.size >= produced, () => `the consumer saw only ${seen.size} of ${produced}`)
  await consumer.disconnect() // commits what was handled

  for (let i = 0; i < 10; i++) await producer.send({ topic, acks: -1, messages: [{ value: `tail${i}` }] })
  const tail = new Set()
  const heir = await member(({ message }) => {
    check(message.value.toString().startsWith('tail'), `saw ${message.value} again`)
    tail.add(message.value.toString())
  })
  await until(() => tail.size >= 10, () => `the second consumer saw only ${[...tail]}`)
  await heir.disconnect()
  await producer.disconnect()
  console.log(`${produced} records: ok`)
}

main().catch((error) => check(false, error.stack))
