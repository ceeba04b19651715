// copy BOOTSTRAP SOURCE SINK: copies records exactly once until it is killed, with franz-go.
// Each transaction has a batch of records and the offsets after them. Every fifth one is aborted and repeated.
package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	bootstrap, source, sink := os.Args[1], os.Args[2], os.Args[3]
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap),
		kgo.TransactionalID("copy-"+sink),
		kgo.ConsumerGroup("copy-"+sink),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(6*time.Second),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	check(err)
	ctx := context.Background()
	// Abort what a killed program left open. Else this one waits for its offsets before it first produces.
	_, _, err = session.Client().ProducerID(ctx)
	check(err)
	for count := 1; ; {
		fetched := session.PollRecords(ctx, 50)
		for _, failed := range fetched.Errors() {
			check(failed.Err)
		}
		if fetched.Empty() {
			continue
		}
		check(session.Begin())
		fetched.EachRecord(func(record *kgo.Record) {
			copied := &kgo.Record{Topic: sink, Partition: record.Partition, Key: record.Key, Value: record.Value}
			session.Produce(ctx, copied, func(_ *kgo.Record, err error) { check(err) })
		})
		commits := kgo.TryCommit
		if count%5 == 0 {
			check(session.Client().Flush(ctx))
			commits = kgo.TryAbort
		}
		count++
		_, err := session.End(ctx, commits)
		check(err)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
