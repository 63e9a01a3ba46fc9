/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/traas-stack/altershield-operator/test/observer"
)

// judge is an observer, of this process or of another.
type judge interface {
	// Settle waits until everything before the call is judged.
	Settle(ctx context.Context) error
	// Violations returns the violations found since the last call, in some namespaces or, without names, in all.
	Violations(namespaces ...string) ([]observer.Violation, error)
	// CheckDelivered returns a violation for each acknowledged verdict that is not stored.
	CheckDelivered(delivered []observer.Delivered) ([]observer.Violation, error)
	// Unfinished lists the pending changes of the workloads of some namespaces.
	Unfinished(namespaces []string) ([]string, error)
	// WritesIn returns the operator's writes in a namespace.
	WritesIn(namespace string) ([]observer.Request, error)
}

// ownJudge is the observer of a world of this process.
type ownJudge struct{ o *observer.Observer }

func (j ownJudge) Settle(ctx context.Context) error { return j.o.Settle(ctx) }

func (j ownJudge) Violations(namespaces ...string) ([]observer.Violation, error) {
	return j.o.Violations(namespaces...), nil
}

func (j ownJudge) CheckDelivered(delivered []observer.Delivered) ([]observer.Violation, error) {
	return j.o.CheckDelivered(delivered), nil
}

func (j ownJudge) Unfinished(namespaces []string) ([]string, error) {
	return j.o.Unfinished(namespaces), nil
}

func (j ownJudge) WritesIn(namespace string) ([]observer.Request, error) {
	return j.o.WritesIn(namespace)
}

const judgeService = "judge"

// judgeServer lets other processes ask an observer.
type judgeServer struct{ ownJudge }

// Settle implements the remote call of that name.
func (s judgeServer) Settle(within time.Duration, _ *struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return s.o.Settle(ctx)
}

// Violations implements the remote call of that name.
func (s judgeServer) Violations(namespaces []string, found *[]observer.Violation) error {
	*found = s.o.Violations(namespaces...)
	return nil
}

// CheckDelivered implements the remote call of that name.
func (s judgeServer) CheckDelivered(delivered []observer.Delivered, found *[]observer.Violation) error {
	*found = s.o.CheckDelivered(delivered)
	return nil
}

// Unfinished implements the remote call of that name.
func (s judgeServer) Unfinished(namespaces []string, open *[]string) error {
	*open = s.o.Unfinished(namespaces)
	return nil
}

// WritesIn implements the remote call of that name.
func (s judgeServer) WritesIn(namespace string, writes *[]observer.Request) (err error) {
	*writes, err = s.o.WritesIn(namespace)
	return err
}

// serveJudge lets the other processes ask the observer of the shared world, until the end of the suite, and returns its address.
func serveJudge(o *observer.Observer) string {
	GinkgoHelper()
	server := rpc.NewServer()
	Expect(server.RegisterName(judgeService, judgeServer{ownJudge{o}})).To(Succeed())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(l.Close)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // the suite is over
			}
			go server.ServeConn(conn)
		}
	}()
	return l.Addr().String()
}

// remoteJudge is the observer of another process.
type remoteJudge struct{ client *rpc.Client }

func dialJudge(address string) remoteJudge {
	GinkgoHelper()
	client, err := rpc.Dial("tcp", address)
	Expect(err).NotTo(HaveOccurred())
	return remoteJudge{client}
}

func (j remoteJudge) call(method string, args, reply any) error {
	if err := j.client.Call(judgeService+"."+method, args, reply); err != nil {
		return fmt.Errorf("ask the observer: %w", err)
	}
	return nil
}

func (j remoteJudge) Settle(ctx context.Context) error {
	within := patience
	if deadline, ok := ctx.Deadline(); ok {
		within = time.Until(deadline)
	}
	done := j.client.Go(judgeService+".Settle", within, &struct{}{}, nil).Done
	select {
	case call := <-done:
		return call.Error
	case <-ctx.Done():
		return errors.Join(errors.New("the observer does not settle"), ctx.Err())
	}
}

func (j remoteJudge) Violations(namespaces ...string) (found []observer.Violation, err error) {
	err = j.call("Violations", namespaces, &found)
	return found, err
}

func (j remoteJudge) CheckDelivered(delivered []observer.Delivered) (found []observer.Violation, err error) {
	err = j.call("CheckDelivered", delivered, &found)
	return found, err
}

func (j remoteJudge) Unfinished(namespaces []string) (open []string, err error) {
	err = j.call("Unfinished", namespaces, &open)
	return open, err
}

func (j remoteJudge) WritesIn(namespace string) (writes []observer.Request, err error) {
	err = j.call("WritesIn", namespace, &writes)
	return writes, err
}
