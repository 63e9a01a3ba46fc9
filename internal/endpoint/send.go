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

package endpoint

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/slots"
)

// maxAddresses bounds the addresses of an Alertmanager that get alerts.
const maxAddresses = 8

// Send posts a list of alerts, in the JSON of the API v2, to each address of the host of an Alertmanager:
// replicas of an Alertmanager exchange notifications, and no alerts. It returns an error if no address
// takes them. No breaker stops it: it is called a few times a minute.
func (c *Clients) Send(ctx context.Context, e *v1alpha1.DefenseEndpoint, alerts []byte) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	known, calls := c.of(e)
	transport, _, err := c.transport(ctx, e, known)
	if err != nil {
		return err
	}
	u, err := url.Parse(e.Spec.URL)
	if err != nil {
		return &Error{v1alpha1.ReasonInvalidPolicy, "its url cannot be used"}
	}
	addresses, err := c.resolve(ctx, "ip", u.Hostname())
	if err != nil || len(addresses) == 0 {
		return failure(ctx, 0, err)
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	errs := make([]error, min(len(addresses), maxAddresses))
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			release, err := calls.Acquire(ctx, slots.Work{Namespace: e.Namespace})
			if err == nil {
				defer release()
				err = known.limiter.Wait(ctx)
			}
			if err != nil {
				errs[i] = failure(ctx, 0, err)
				return
			}
			errs[i] = c.post(ctx, e, transport, u, addresses[i].Unmap(), alerts)
		})
	}
	all.Wait()
	if slices.Contains(errs, nil) {
		return nil
	}
	return errs[0]
}

// post posts alerts to one address.
func (c *Clients) post(
	ctx context.Context, e *v1alpha1.DefenseEndpoint, transport http.RoundTripper, u *url.URL, to netip.Addr, alerts []byte,
) error {
	at := u.JoinPath("api", "v2", "alerts")
	at.Host = strings.TrimSuffix(net.JoinHostPort(to.String(), u.Port()), ":")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), bytes.NewReader(alerts))
	if err != nil {
		return &Error{v1alpha1.ReasonInvalidPolicy, "its url cannot be used"}
	}
	request.Host = u.Host
	request.Header.Set("Content-Type", "application/json")
	response, err := withoutRedirects(&capped{next: transport, most: responseBytes(e)}).Do(request)
	if err != nil {
		return failure(ctx, 0, err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body) // so that the connection can be used again
	switch page := strings.HasPrefix(response.Header.Get("Content-Type"), "text/html"); {
	case response.StatusCode == http.StatusBadRequest:
		return &Error{v1alpha1.ReasonQueryFailed, "it refuses the alerts (HTTP 400)"}
	case response.StatusCode == http.StatusOK && !page:
		return nil
	case response.StatusCode/100 == 2, response.StatusCode == http.StatusNotFound:
		return &Error{v1alpha1.ReasonUnavailable,
			fmt.Sprintf("it does not take alerts (HTTP %d): is it an Alertmanager, and the path of spec.url right?", response.StatusCode)}
	default:
		return failure(ctx, response.StatusCode, nil)
	}
}
