// Delayed messages: how late they are at a client that waits for them.
package main

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Multiplied by it, numbers are in another order: due times differ from the order of the sends.
const golden = 2_654_435_761

// delay sends `count` messages that are due evenly spread over `over_ms`, from `from_ms` after now on, and receives
// them. Lateness is the time at which a message has reached this client, minus its due time.
func delay(given arguments) (object, error) {
	producers, err := connectAll(given)
	if err != nil {
		return nil, err
	}
	defer closeAll(producers)
	consumers, err := connectAll(given, given.Group)
	if err != nil {
		return nil, err
	}
	defer closeAll(consumers)
	d := &delayed{given: given, late: make([]atomic.Bool, given.Count), seen: make([]atomic.Int64, given.Count)}
	var receiving workers
	until, stop := context.WithTimeout(context.Background(), seconds(given.TimeoutS))
	defer stop()
	d.lateNs = make([][]int64, given.Connections*given.Callers)
	for caller := range d.lateNs {
		r, err := newReceiver(consumers[caller%len(consumers)], given)
		if err != nil {
			return nil, err
		}
		receiving.start(func() { d.receive(until, stop, r, caller) })
	}
	d.sendAll(producers)
	receiving.wait()
	return d.result(), nil
}

type delayed struct {
	given     arguments
	failed    failures      // sends
	acks      failures      // receives and acks
	late      []atomic.Bool // accepted only after its due time
	seen      []atomic.Int64
	received  atomic.Int64
	early     atomic.Int64
	lateNs    [][]int64 // by receiver
	sendingNs int64
}

func (d *delayed) sendAll(producers []*client) {
	var claimed atomic.Int64
	var working workers
	started := time.Now()
	fromMs := started.UnixMilli() + d.given.FromMs
	for caller := range d.given.Connections * d.given.Senders {
		c := producers[caller%len(producers)]
		working.start(func() {
			for {
				number := claimed.Add(1) - 1
				if number >= int64(d.given.Count) {
					return
				}
				place := number * golden % int64(d.given.Count)
				dueMs := fromMs + place*d.given.OverMs/int64(d.given.Count)
				body := fmt.Appendf(nil, "%d %d ", number, dueMs)
				body = append(body, bytes.Repeat([]byte("x"), max(0, d.given.Size-len(body)))...)
				if err := c.send(d.given.Topic, body, timestamppb.New(time.UnixMilli(dueMs))); err != nil {
					d.failed.add(err)
				}
				d.late[number].Store(time.Now().UnixMilli() >= dueMs)
			}
		})
	}
	working.wait()
	d.sendingNs = time.Since(started).Nanoseconds()
}

func (d *delayed) receive(until context.Context, stop func(), r *receiver, caller int) {
	var acking workers
	for until.Err() == nil {
		err := r.each(until, func(message *v2.Message) {
			atNs := time.Now().UnixNano()
			d.take(message, atNs, caller)
			acking.start(func() {
				if err := r.ack(message); err != nil {
					d.acks.add(fmt.Errorf("ack: %w", err))
				}
			})
		})
		if err != nil && until.Err() == nil {
			d.acks.add(fmt.Errorf("receive: %w", err))
			time.Sleep(pauseAfterFailure)
		}
		if d.received.Load() >= int64(d.given.Count-d.failed.countNow()) {
			stop()
		}
	}
	acking.wait()
}

func (d *delayed) take(message *v2.Message, atNs int64, caller int) {
	var number, dueMs int64
	if _, err := fmt.Sscanf(string(message.GetBody()[:min(40, len(message.GetBody()))]), "%d %d", &number, &dueMs); err != nil {
		d.acks.add(fmt.Errorf("a message of another run: %w", err))
		return
	}
	if d.seen[number].Add(1) > 1 {
		return
	}
	d.received.Add(1)
	lateNs := atNs - dueMs*1e6
	if lateNs < 0 {
		d.early.Add(1)
	}
	if !d.late[number].Load() {
		d.lateNs[caller] = append(d.lateNs[caller], lateNs)
	}
}

func (d *delayed) result() object {
	sorted := joined(d.lateNs)
	repeated, tooLate := int64(0), 0
	for number := range d.seen {
		repeated += max(0, d.seen[number].Load()-1)
		if d.late[number].Load() {
			tooLate++
		}
	}
	return object{
		"received": d.received.Load(), "early": d.early.Load(), "repeated": repeated, "sent_too_late": tooLate,
		"missing": int64(d.given.Count-d.failed.count) - d.received.Load(), "sending_ns": d.sendingNs,
		"failed": d.failed.count, "first_failure": d.failed.text(),
		"failed_receives": d.acks.count, "first_failed_receive": d.acks.text(),
		"p50_ns": quantile(sorted, .5), "p99_ns": quantile(sorted, .99), "max_ns": quantile(sorted, 1),
	}
}
