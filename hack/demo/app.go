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

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

// startApp answers requests at an address of this machine that the operator takes for the address of a pod, and writes the policy that
// calls it. The app is nil where there is no such address.
func startApp(ctx context.Context, root, dir string) (app *walkthrough.App, stop func(), err error) {
	// A machine without addresses has none that could stand for a pod.
	addresses, _ := controlplane.PodAddresses(ctx)
	for _, ip := range addresses {
		if app, stop := listen(ctx, ip); app != nil {
			app.Policy, err = writePolicy(root, dir, app.Address.Port())
			return app, stop, err
		}
	}
	return nil, func() {}, nil
}

// listen answers at an address, if it can be reached there.
func listen(ctx context.Context, ip netip.Addr) (*walkthrough.App, func()) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(ip, 0).String())
	if err != nil {
		return nil, nil
	}
	var status atomic.Int32
	status.Store(http.StatusOK)
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) }),
	}
	go func() { _ = server.Serve(l) }()
	stop := func() { _ = server.Close() }
	address, err := netip.ParseAddrPort(l.Addr().String())
	if err == nil {
		var c net.Conn
		if c, err = (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address.String()); err == nil {
			_ = c.Close()
			return &walkthrough.App{Address: address, Answer: func(code int) { status.Store(int32(code)) }}, stop
		}
	}
	stop()
	return nil, nil
}

// writePolicy writes the policy that calls pods at a port, and returns its path below root.
func writePolicy(root, dir string, port uint16) (string, error) {
	path := filepath.Join(dir, walkthrough.Policy+".yaml")
	text := fmt.Sprintf(`apiVersion: app.ops.cloud.alipay.com/v1alpha1
kind: DefensePolicy
metadata:
  name: %s
spec:
  checks:
  - name: %s
    probe:
      http:
        port: %d
        path: /healthz
      interval: 1s
      successes: 3
      failures: 3
`, walkthrough.Policy, walkthrough.Check, port)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", err
	}
	return filepath.Rel(root, path)
}
