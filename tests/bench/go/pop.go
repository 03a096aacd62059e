// Drains a topic over remoting: with pulls, or with pops that are acknowledged.
package main

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	pullSysFlag   = 1 | 2 | 4 // commits the offset, may wait, has its subscription with it
	pullSuspendMs = 15_000
)

// drain runs one function per caller until `count` messages were taken. A function takes one batch.
func drain(given arguments, callers int, take func(r *remote, caller int) (int, error)) (object, error) {
	r, err := dial(given.Broker)
	if err != nil {
		return nil, err
	}
	var taken, calls, tookNs atomic.Int64
	var failed failures
	var working workers
	done := make(chan struct{})
	var finish sync.Once
	started := time.Now()
	end := func() {
		finish.Do(func() {
			tookNs.Store(time.Since(started).Nanoseconds())
			close(done)
			r.close() // ends calls that still wait for messages
		})
	}
	timer := time.AfterFunc(seconds(given.TimeoutS), end)
	defer timer.Stop()
	for caller := range callers {
		working.start(func() {
			for {
				count, err := take(r, caller)
				select {
				case <-done:
					return
				default:
				}
				if err != nil {
					failed.add(err)
					time.Sleep(pauseAfterFailure)
				}
				if count > 0 {
					calls.Add(1)
				}
				if taken.Add(int64(count)) >= int64(given.Count) {
					end()
				}
			}
		})
	}
	working.wait()
	return object{
		"taken": taken.Load(), "calls": calls.Load(), "took_ns": tookNs.Load(), "failed": failed.count,
		"first_failure": failed.text(),
	}, nil
}

// pull reads every queue from its beginning, one caller per queue, as the 4.x client does.
func pull(given arguments) (object, error) {
	next := make([]int64, given.Queues)
	return drain(given, given.Queues, func(r *remote, queue int) (int, error) {
		offset := strconv.FormatInt(next[queue], 10)
		reply, err := r.call(codePull, fields{
			"consumerGroup": given.Group, "topic": given.Topic, "queueId": strconv.Itoa(queue), "queueOffset": offset,
			"maxMsgNums": strconv.Itoa(given.Batch), "sysFlag": strconv.Itoa(pullSysFlag), "commitOffset": offset,
			"suspendTimeoutMillis": strconv.Itoa(pullSuspendMs), "subscription": "*", "subVersion": "0",
			"expressionType": "TAG",
		}, nil)
		if err != nil || reply.Code == codeNotFound {
			return 0, err
		}
		if reply.Code != codeOK {
			return 0, fmt.Errorf("pull: code %d %s", reply.Code, reply.Remark)
		}
		next[queue], err = strconv.ParseInt(reply.ExtFields["nextBeginOffset"], 10, 64)
		return records(reply.body), err
	})
}

// pop takes messages of all queues and acknowledges them one by one, or in one batch per pop.
func pop(given arguments) (object, error) {
	return drain(given, given.Callers, func(r *remote, _ int) (int, error) {
		reply, err := r.call(codePop, fields{
			"consumerGroup": given.Group, "topic": given.Topic, "queueId": "-1", "maxMsgNums": strconv.Itoa(given.Batch),
			"invisibleTime": strconv.FormatInt(int64(given.InvisibleS*1000), 10), "pollTime": strconv.Itoa(pullSuspendMs),
			"bornTime": strconv.FormatInt(time.Now().UnixMilli(), 10), "initMode": "0", "expType": "TAG", "exp": "*",
			"order": "false",
		}, nil)
		if err != nil || reply.Code == codeNotFound || reply.Code == codePollTimeout {
			return 0, err
		}
		if reply.Code != codeOK {
			return 0, fmt.Errorf("pop: code %d %s", reply.Code, reply.Remark)
		}
		popped, err := parsePop(given, reply)
		if err == nil && popped.count() != records(reply.body) {
			err = fmt.Errorf("%d offsets for %d records", popped.count(), records(reply.body))
		}
		if err != nil {
			return 0, err
		}
		if given.Ack == "batch" {
			err = popped.ackTogether(r)
		} else {
			err = popped.ackEach(r)
		}
		return popped.count(), err
	})
}

// records counts the records of a body by their lengths.
func records(body []byte) int {
	count := 0
	for len(body) >= 4 {
		body = body[binary.BigEndian.Uint32(body):]
		count++
	}
	return count
}

type poppedQueue struct {
	mark, queue string
	start       int64
	offsets     []int64
}

type popped struct {
	given              arguments
	popTime, invisible string
	reviveQueue        string
	queues             []poppedQueue
	topicOf            map[string]string
}

func parsePop(given arguments, reply response) (*popped, error) {
	p := &popped{
		given: given, popTime: reply.ExtFields["popTime"], invisible: reply.ExtFields["invisibleTime"],
		reviveQueue: reply.ExtFields["reviveQid"],
		topicOf: map[string]string{
			"0": given.Topic, "1": "%RETRY%" + given.Group + "_" + given.Topic, "2": "%RETRY%" + given.Group + "+" + given.Topic,
		},
	}
	starts := map[string]int64{}
	for _, entry := range strings.Split(reply.ExtFields["startOffsetInfo"], ";") {
		parts := strings.Split(entry, " ")
		if len(parts) != 3 {
			return nil, fmt.Errorf("startOffsetInfo %q", entry)
		}
		starts[parts[0]+" "+parts[1]], _ = strconv.ParseInt(parts[2], 10, 64)
	}
	for _, entry := range strings.Split(reply.ExtFields["msgOffsetInfo"], ";") {
		parts := strings.Split(entry, " ")
		if len(parts) != 3 {
			return nil, fmt.Errorf("msgOffsetInfo %q", entry)
		}
		queue := poppedQueue{mark: parts[0], queue: parts[1], start: starts[parts[0]+" "+parts[1]]}
		for _, text := range strings.Split(parts[2], ",") {
			offset, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, err
			}
			queue.offsets = append(queue.offsets, offset)
		}
		p.queues = append(p.queues, queue)
	}
	return p, nil
}

func (p *popped) count() int {
	count := 0
	for _, queue := range p.queues {
		count += len(queue.offsets)
	}
	return count
}

func (p *popped) ackEach(r *remote) error {
	var requests []fields
	for _, queue := range p.queues {
		for _, offset := range queue.offsets {
			extra := fmt.Sprintf("%d %s %s %s %s %s %s %d", queue.start, p.popTime, p.invisible, p.reviveQueue, queue.mark,
				p.given.BrokerName, queue.queue, offset)
			requests = append(requests, fields{
				"consumerGroup": p.given.Group, "topic": p.topicOf[queue.mark], "queueId": queue.queue, "extraInfo": extra,
				"offset": strconv.FormatInt(offset, 10),
			})
		}
	}
	return succeed(r, codeAck, requests, nil)
}

func (p *popped) ackTogether(r *remote) error {
	var acks []object
	for _, queue := range p.queues {
		var bits []byte
		for _, offset := range queue.offsets {
			place := int(offset - queue.start)
			for len(bits) <= place/8 {
				bits = append(bits, 0)
			}
			bits[place/8] |= 1 << (place % 8)
		}
		number, _ := strconv.Atoi(queue.queue)
		revive, _ := strconv.Atoi(p.reviveQueue)
		popTime, _ := strconv.ParseInt(p.popTime, 10, 64)
		invisible, _ := strconv.ParseInt(p.invisible, 10, 64)
		acks = append(acks, object{
			"c": p.given.Group, "t": p.given.Topic, "r": queue.mark, "so": queue.start, "q": number, "rq": revive,
			"pt": popTime, "it": invisible, "b": base64.StdEncoding.EncodeToString(bits),
		})
	}
	body, err := json.Marshal(object{"brokerName": p.given.BrokerName, "acks": acks})
	if err != nil {
		return err
	}
	return succeed(r, codeBatchAck, []fields{{}}, [][]byte{body})
}

func succeed(r *remote, code int, requests []fields, bodies [][]byte) error {
	replies, err := r.begin(code, requests, bodies)
	if err != nil {
		return err
	}
	for _, waiting := range replies {
		reply, open := <-waiting
		if !open {
			return errors.New("the connection was closed during an acknowledgement")
		}
		if reply.Code != codeOK {
			err = fmt.Errorf("request %d: code %d %s", code, reply.Code, reply.Remark)
		}
	}
	return err
}
