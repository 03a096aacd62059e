// Calls the methods of tests/support/http2_server.py with grpc-go. Messages are plain bytes, so no generated code is needed.
//
// go_grpc check ADDRESS TLS: makes calls of all kinds and prints "ok".
// go_grpc load ADDRESS CONNECTIONS CALLERS SECONDS: unary calls of 200 bytes with RocketMQ's metadata; prints their number.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

type rawCodec struct{}

func (rawCodec) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (rawCodec) Name() string { return "proto" }

func dial(address string, useTLS bool) *grpc.ClientConn {
	security := insecure.NewCredentials()
	if useTLS {
		security = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	connection, err := grpc.Dial(address, grpc.WithTransportCredentials(security),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{}), grpc.MaxCallRecvMsgSize(1<<30)))
	must(err)
	return connection
}

func must(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func expect(condition bool, what string, arguments ...any) {
	if !condition {
		must(fmt.Errorf(what, arguments...))
	}
}

func unary(ctx context.Context, connection *grpc.ClientConn, method string, message []byte, options ...grpc.CallOption) ([]byte, error) {
	var answer []byte
	err := connection.Invoke(ctx, "/test.Service/"+method, &message, &answer, options...)
	return answer, err
}

func check(address string, useTLS bool) {
	connection := dial(address, useTLS)
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	for _, size := range []int{0, 1, 16379, 16380, 100000, 4 << 20} {
		message := bytes.Repeat([]byte("x"), size)
		answer, err := unary(ctx, connection, "Echo", message)
		must(err)
		expect(bytes.Equal(answer, message), "echo of %d bytes", size)
		answer, err = unary(ctx, connection, "Echo", message, grpc.UseCompressor(gzip.Name))
		must(err)
		expect(bytes.Equal(answer, message), "echo of %d bytes with gzip", size)
	}

	var group sync.WaitGroup
	for number := 0; number < 2000; number++ {
		group.Add(1)
		go func(number int) {
			defer group.Done()
			message := []byte(strconv.Itoa(number))
			answer, err := unary(ctx, connection, "Later", message)
			must(err)
			expect(bytes.Equal(answer, message), "%s is not %s", answer, message)
		}(number)
	}
	group.Wait()

	_, err := unary(ctx, connection, "Fail", []byte("9"))
	expect(status.Code(err) == codes.FailedPrecondition, "code %v", err)
	expect(status.Convert(err).Message() == "as asked: ü%\n.", "message %q", status.Convert(err).Message())
	_, err = unary(ctx, connection, "Unknown", nil)
	expect(status.Code(err) == codes.Unimplemented, "code %v", err)
	short, cancelShort := context.WithTimeout(ctx, 200*time.Millisecond)
	_, err = unary(short, connection, "Wait", nil)
	cancelShort()
	expect(status.Code(err) == codes.DeadlineExceeded, "code %v", err)

	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/test.Service/Count")
	must(err)
	count := []byte("3000")
	must(stream.SendMsg(&count))
	must(stream.CloseSend())
	for number := 0; number < 3000; number++ {
		var answer []byte
		must(stream.RecvMsg(&answer))
		expect(string(answer) == strconv.Itoa(number), "%s is not %d", answer, number)
	}
	var nothing []byte
	expect(stream.RecvMsg(&nothing) == io.EOF, "the stream goes on")
	expect(stream.Trailer().Get("x-count")[0] == "3000", "trailers %v", stream.Trailer())

	chat, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Service/Chat")
	must(err)
	for number := 0; number < 200; number++ {
		message := bytes.Repeat([]byte{byte(number)}, number*500)
		var answer []byte
		must(chat.SendMsg(&message))
		must(chat.RecvMsg(&answer))
		expect(bytes.Equal(answer, message), "chat message %d", number)
	}
	must(chat.CloseSend())
	expect(chat.RecvMsg(&nothing) == io.EOF, "the chat goes on")
	fmt.Println("ok")
}

func load(address string, connections, callers int, length time.Duration) {
	var calls int64
	var group sync.WaitGroup
	end := time.Now().Add(length)
	body := bytes.Repeat([]byte("x"), 200)
	for c := 0; c < connections; c++ {
		connection := dial(address, false)
		defer connection.Close()
		for caller := 0; caller < callers; caller++ {
			group.Add(1)
			go func() {
				defer group.Done()
				id := make([]byte, 16)
				for time.Now().Before(end) {
					_, err := rand.Read(id)
					must(err)
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					ctx = metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", "host@1234@0@abcdefgh",
						"x-mq-language", "GO", "x-mq-protocol", "v2", "x-mq-client-version", "5.1.4",
						"x-mq-request-id", hex.EncodeToString(id), "x-mq-date-time", "20261116T233000Z", "x-mq-namespace", "")
					_, err = unary(ctx, connection, "Echo", body)
					cancel()
					must(err)
					atomic.AddInt64(&calls, 1)
				}
			}()
		}
	}
	group.Wait()
	fmt.Println(calls)
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	must(err)
	return value
}

func main() {
	switch os.Args[1] {
	case "check":
		check(os.Args[2], os.Args[3] == "true")
	case "load":
		load(os.Args[2], number(os.Args[3]), number(os.Args[4]), time.Duration(number(os.Args[5]))*time.Second)
	}
}
