// Produces and consumes in a group through a restart of the broker; see ../README.md.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	bootstrap = os.Args[1]
	restarted = os.Args[2]
	topic     = fmt.Sprintf("go-%d-%d", os.Getpid(), time.Now().UnixNano())
)

func client(more ...kgo.Opt) *kgo.Client {
	options := append([]kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.AllowAutoTopicCreation()}, more...)
	made, err := kgo.NewClient(options...)
	if err != nil {
		log.Fatal(err)
	}
	return made
}

func member() *kgo.Client {
	return client(kgo.ConsumerGroup(topic+"-group"), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
}

// produce sends records until 500 after the restart and returns how many there are.
func produce(ctx context.Context, producer *kgo.Client) int {
	var acknowledged atomic.Int64
	next, left, halfway := 0, 500, false
	for left > 0 {
		record := &kgo.Record{
			Topic: topic, Key: []byte(fmt.Sprint("key", next%50)), Value: []byte(fmt.Sprint("value", next)),
		}
		producer.Produce(ctx, record, func(_ *kgo.Record, err error) {
			if err != nil {
				log.Fatal("produce: ", err)
			}
			acknowledged.Add(1)
		})
		next++
		if !halfway && acknowledged.Load() >= 500 {
			halfway = true
			fmt.Println("halfway")
		}
		if _, err := os.Stat(restarted); err == nil {
			left--
		}
		time.Sleep(time.Millisecond)
	}
	if err := producer.Flush(ctx); err != nil {
		log.Fatal("flush: ", err)
	}
	return next
}

// consume polls until enough says so; ok is asked about each record's value and place.
func consume(ctx context.Context, consumer *kgo.Client, enough func() bool, each func(*kgo.Record)) {
	for !enough() {
		if ctx.Err() != nil {
			log.Fatal("the consumer did not see everything in time")
		}
		poll, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		fetches := consumer.PollFetches(poll)
		cancel()
		fetches.EachRecord(each)
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Second)
	defer cancel()
	producer := client()
	if err := producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("first")}).FirstErr(); err != nil {
		log.Fatal("create the topic: ", err)
	}
	produced := make(chan int, 1)
	go func() { produced <- produce(ctx, producer) + 1 }()

	seen, places := map[string]bool{}, map[string]bool{}
	total := -1
	consumer := member()
	consume(ctx, consumer, func() bool {
		select {
		case total = <-produced:
		default:
		}
		return total >= 0 && len(seen) >= total
	}, func(record *kgo.Record) {
		value, place := string(record.Value), fmt.Sprint(record.Partition, "/", record.Offset)
		if seen[value] && !places[place] {
			log.Fatal(value, " is in the log twice")
		}
		seen[value], places[place] = true, true
	})
	if err := consumer.CommitUncommittedOffsets(ctx); err != nil {
		log.Fatal("commit: ", err)
	}
	consumer.Close()

	for i := range 10 {
		tail := &kgo.Record{Topic: topic, Value: []byte(fmt.Sprint("tail", i))}
		if err := producer.ProduceSync(ctx, tail).FirstErr(); err != nil {
			log.Fatal("produce: ", err)
		}
	}
	tail := map[string]bool{}
	heir := member()
	consume(ctx, heir, func() bool { return len(tail) >= 10 }, func(record *kgo.Record) {
		if !strings.HasPrefix(string(record.Value), "tail") {
			log.Fatal("saw ", string(record.Value), " again")
		}
		tail[string(record.Value)] = true
	})
	heir.Close()
	producer.Close()
	fmt.Printf("%d records: ok\n", total)
}
