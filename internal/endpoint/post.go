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
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/breaker"
	"github.com/traas-stack/altershield-operator/internal/slots"
)

// maxAnswer bounds the answer of a service in bytes, beside the limit of its endpoint: as values of an expression it takes ten
// times as much memory.
const maxAnswer = 1 << 20

// Answer is the answer of a service, with a status from 200 to 299.
type Answer struct {
	Status int
	Body   []byte
}

// Post sends JSON to a service. The ID names the call, and is the same if the call is repeated. The timeout bounds the call, not
// the wait for the limits of the endpoint.
func (c *Clients) Post(
	ctx context.Context, e *v1alpha1.DefenseEndpoint, work slots.Work, id string, body []byte, timeout time.Duration,
) (answer Answer, err error) {
	err = c.limited(ctx, e, work, func(known *endpoint) (result breaker.Outcome, err error) {
		answer, result, err = c.do(ctx, e, known, http.MethodPost, id, body, timeout)
		return result, err
	})
	return answer, err
}

// do makes one request, without an ID a plain one.
func (c *Clients) do(
	ctx context.Context, e *v1alpha1.DefenseEndpoint, known *endpoint, method, id string, body []byte, timeout time.Duration,
) (answer Answer, _ breaker.Outcome, _ error) {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	transport, key, err := c.transport(ctx, e, known)
	if err != nil {
		return answer, breaker.Neutral, err
	}
	request, err := http.NewRequestWithContext(ctx, method, e.Spec.URL, bytes.NewReader(body))
	if err != nil {
		return answer, breaker.Neutral, &Error{Reason: v1alpha1.ReasonInvalidPolicy, Message: "its url cannot be used"}
	}
	if id != "" {
		describe(request.Header, key, id, c.clock.Now(), body)
	}
	response, err := withoutRedirects(&capped{next: transport, most: min(responseBytes(e), maxAnswer)}).Do(request)
	if err == nil {
		defer response.Body.Close()
		if answer.Status = response.StatusCode; answer.Status/100 == 2 {
			answer.Body, err = io.ReadAll(response.Body)
		}
	}
	failed := failure(ctx, answer.Status, err)
	switch {
	case err == nil && answer.Status/100 == 2:
		return answer, breaker.Answered, nil
	case caller.Err() != nil:
		return answer, breaker.Neutral, errCanceled
	case answer.Status/100 == 4 && answer.Status != http.StatusTooManyRequests:
		failed.Reason = v1alpha1.ReasonRequestNotAccepted
		return answer, breaker.Answered, failed
	default:
		return answer, breaker.Failed, failed
	}
}

// describe sets the headers of Standard Webhooks. Their library would also verify, which the operator does not do.
func describe(h http.Header, key []byte, id string, now time.Time, body []byte) {
	at := strconv.FormatInt(now.Unix(), 10)
	h.Set("Content-Type", "application/json")
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", at)
	if key != nil {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
		h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
}
