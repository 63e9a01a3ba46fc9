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

package monitoring

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// clientOf returns a client that trusts an authority, and follows no redirects.
func clientOf(t *testing.T, ca []byte) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		t.Fatal("no certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func startFront(t *testing.T, o FrontOptions) *Front {
	t.Helper()
	f, err := StartFront(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// ask sends a request, and returns status, headers and body.
func ask(t *testing.T, c *http.Client, r *http.Request) (*http.Response, string, error) {
	t.Helper()
	resp, err := c.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

func post(t *testing.T, f *Front, form url.Values, headers ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.URL()+"/api/v1/query", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// TestFront asks two replicas in turn, with what the front demands and without.
func TestFront(t *testing.T) {
	t.Parallel()
	one, other := newTargets(t, TargetsOptions{}), newTargets(t, TargetsOptions{})
	add(t, one, "web-1", TargetOptions{})
	add(t, other, "web-2", TargetOptions{})
	a := startPrometheus(t, PrometheusOptions{Targets: one, Access: Access{TLS: true, Basic: true}})
	b := startPrometheus(t, PrometheusOptions{Targets: other})
	f := startFront(t, FrontOptions{
		Backends: []*Server{a.Server, b.Server}, Certificate: Trusted, Token: "secret", Headers: map[string]string{"X-Scope-OrgID": "shop"},
	})
	scraped(t, a)
	scraped(t, b)
	c := clientOf(t, f.CA())
	form := url.Values{"query": {"up"}}
	for _, row := range []struct {
		headers []string
		status  int
		says    string
	}{
		{[]string{"X-Scope-OrgID", "shop"}, http.StatusUnauthorized, "Unauthorized"},
		{[]string{"Authorization", "Bearer other", "X-Scope-OrgID", "shop"}, http.StatusUnauthorized, "Unauthorized"},
		{[]string{"Authorization", "Bearer secret"}, http.StatusForbidden, "X-Scope-OrgID"},
		// The refused requests had their turns, too.
		{[]string{"Authorization", "Bearer secret", "X-Scope-OrgID", "shop"}, http.StatusOK, `"pod":"web-2"`},
		{[]string{"Authorization", "Bearer secret", "X-Scope-OrgID", "shop"}, http.StatusOK, `"pod":"web-1"`},
	} {
		resp, body, err := ask(t, c, post(t, f, form, row.headers...))
		if err != nil || resp.StatusCode != row.status || !strings.Contains(body, row.says) {
			t.Errorf("%v: %v %s, want %d %s (%v)", row.headers, resp, body, row.status, row.says, err)
		}
	}
	requests := f.Requests()
	if len(requests) != 5 {
		t.Fatalf("%d requests", len(requests))
	}
	r := requests[4]
	if r.Path != "/api/v1/query" || r.Form.Get("query") != "up" || r.Header.Get("X-Scope-OrgID") != "shop" || len(r.Body) > 0 {
		t.Errorf("request %+v", r)
	}
	f.Break(Status(http.StatusTooManyRequests, 1500*time.Millisecond))
	resp, _, err := ask(t, c, post(t, f, form))
	if err != nil || resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "2" {
		t.Errorf("%v, %v", resp, err)
	}
	f.Break(nil)
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	// Whose turn it is does not matter: one of two is down.
	statuses := map[int]bool{}
	for range 2 {
		resp, _, err := ask(t, c, post(t, f, form, "Authorization", "Bearer secret", "X-Scope-OrgID", "shop"))
		if err != nil {
			t.Fatal(err)
		}
		statuses[resp.StatusCode] = true
	}
	if !statuses[http.StatusOK] || !statuses[http.StatusBadGateway] {
		t.Errorf("one of two is down: %v", statuses)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	f := startFront(t, FrontOptions{})
	c := clientOf(t, f.CA())
	const status = http.StatusOK
	for name, row := range map[string]struct {
		fault  Fault
		status int
		says   string
		header string
	}{
		"no backend": {nil, http.StatusBadGateway, "no backend", ""},
		"garbage":    {Garbage(), status, "\xff", "application/json"},
		"HTML":       {HTML(http.StatusOK), status, "<!DOCTYPE html>", "text/html"},
		"refused":    {Refused(422, "execution", "too many"), 422, `{"error":"too many","errorType":"execution","status":"error"}`, "json"},
		"429":        {Status(http.StatusTooManyRequests, 0), http.StatusTooManyRequests, "Too Many Requests", ""},
		"redirect":   {Redirect("http://127.0.0.1:1/x"), http.StatusTemporaryRedirect, "", "http://127.0.0.1:1/x"},
		"large":      {Large(10 << 20), status, `"result":[{"metric":{"pod":"xxx`, ""},
	} {
		f.Break(row.fault)
		resp, body, err := ask(t, c, post(t, f, nil))
		if err != nil || resp.StatusCode != row.status || !strings.Contains(body, row.says) {
			t.Errorf("%s: %v, %v, %.200q", name, err, resp, body)
			continue
		}
		if got := resp.Header.Get("Content-Type") + resp.Header.Get("Location"); !strings.Contains(got, row.header) {
			t.Errorf("%s: header %s, want %s", name, got, row.header)
		}
		if name == "large" && (len(body) < 10<<20 || !strings.HasSuffix(body, "]}}")) {
			t.Errorf("%d bytes, which end with %q", len(body), body[len(body)-10:])
		}
	}
	for name, row := range map[string]struct {
		fault   Fault
		headers bool
	}{
		"reset": {Reset(), false}, "truncated": {Truncated(), true}, "hang": {Hang(), false}, "hang in body": {HangInBody(), true},
	} {
		f.Break(row.fault)
		hangs := strings.HasPrefix(name, "hang")
		ctx, cancel := t.Context(), func() {}
		if hangs {
			ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
		}
		resp, err := c.Do(post(t, f, nil).WithContext(ctx))
		if (err == nil) != row.headers {
			t.Errorf("%s: %v, %v", name, resp, err)
		}
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if err == nil || errors.Is(err, context.DeadlineExceeded) != hangs {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}

	// The end of the server ends requests that hang.
	f.Break(Hang())
	hanging := post(t, f, nil).WithContext(context.WithoutCancel(t.Context()))
	result := make(chan error, 1)
	before := len(f.Requests())
	go func() {
		resp, err := c.Do(hanging)
		if err == nil {
			resp.Body.Close()
		}
		result <- err
	}()
	eventually(t, "the request", func(context.Context) error {
		if len(f.Requests()) == before {
			return errors.New("no request")
		}
		return nil
	})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err == nil {
		t.Error("a request that hangs was answered")
	}
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	for certificate, want := range map[Certificate]string{
		PlainHTTP: "", Trusted: "", SelfSigned: "signed by unknown authority", Expired: "expired", OtherName: "doesn't contain any IP SANs",
	} {
		f := startFront(t, FrontOptions{Certificate: certificate})
		_, body, err := ask(t, clientOf(t, f.CA()), post(t, f, nil))
		if want == "" && !strings.Contains(body, "no backend") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v %s, want %s", certificate, err, body, want)
		}
		if strings.HasPrefix(f.URL(), "https") != (certificate != PlainHTTP) {
			t.Errorf("%s: %s", certificate, f.URL())
		}
	}
	if _, err := StartFront(FrontOptions{Certificate: "Other"}); err == nil {
		t.Error("an unknown certificate was accepted")
	}
}
