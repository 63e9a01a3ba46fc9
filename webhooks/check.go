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

package webhooks

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Checker says whether a version may be released.
type Checker interface {
	// Check answers before the deadline of the context, or fails: an error means
	// that there is no answer.
	Check(ctx context.Context, q Question) (Answer, error)
}

// Question is what admission asks about a release.
type Question struct {
	// RequestUID is of one call of the webhook; no two questions have the same
	// together with the same version.
	RequestUID types.UID
	// Kind of the workload in lower case, as in messages.
	Kind string
	// Name ends with a hyphen where the API server is yet to complete it.
	Namespace, Name string
	// App is the application the workload belongs to.
	App string
	// User who releases.
	User string
	// Release is the number of the release that this one follows, as stored;
	// empty when there is none.
	Release string
	// OldVersion and OldImages are empty when the workload is being created.
	Version, OldVersion string
	Images, OldImages   []string

	// of is the kind, and uid that of the workload that the request says is stored:
	// empty when it is being created. Whether it is so is stored.
	of     workload.Kind
	uid    types.UID
	stored bool
}

// Answer to a Question.
type Answer struct {
	// Passes: the version may be released.
	Passes bool
	// Explanation, when it may not: one line with the server's message and link.
	Explanation string
}

// ServerCheckOptions say how the server is asked.
type ServerCheckOptions struct {
	// Registration with an AdmissionScene: without one there is no admission check.
	// Other empty values take what a new server is registered with.
	altershield.Registration
	// Cluster identifies the cluster among those of the platform.
	Cluster string
}

// NewServerCheck returns a Checker that asks AlterShield Server, or nil where
// there is no client or no scene.
func NewServerCheck(c *altershield.Client, o ServerCheckOptions) Checker {
	if c == nil || o.AdmissionScene == "" {
		return nil
	}
	o.Tenant = cmp.Or(o.Tenant, altershield.DefaultTenant)
	o.Phase = cmp.Or(o.Phase, altershield.PhaseProd)
	o.TargetType = cmp.Or(o.TargetType, altershield.DefaultTargetType)
	return &serverCheck{client: c, options: o}
}

const (
	// serverGrace is what the server may take beyond our own limit. A check that
	// runs into the server's limit is answered as passed, so ours must end first:
	// silence has to be seen as such.
	serverGrace = time.Second
	// maxExplained bounds the server's message in an explanation, to leave room
	// for the link.
	maxExplained = 768
	// maxImages and maxImage bound the images that are sent to the server.
	maxImages, maxImage = 100, 512
	// maxImagesJSON bounds each of the two lists, a part of what a column of the
	// server holds.
	maxImagesJSON = 24 << 10
)

// serverCheck asks AlterShield Server with one synchronous call.
type serverCheck struct {
	client  *altershield.Client
	options ServerCheckOptions
}

// Check implements Checker.
func (c *serverCheck) Check(ctx context.Context, q Question) (Answer, error) {
	request := c.request(q)
	if deadline, ok := ctx.Deadline(); ok {
		request.CheckTimeout = (time.Until(deadline) + serverGrace).Milliseconds()
	}
	result, err := c.client.SubmitAndStart(ctx, request)
	switch {
	case altershield.IsNoCheck(err):
		return Answer{Passes: true}, nil
	case err != nil:
		return Answer{}, err
	case result.Verdict.Passes():
		return Answer{Passes: true}, nil
	}
	verdict := *result.Verdict
	verdict.Msg = altershield.Cut(verdict.Msg, maxExplained)
	verdict.URL = cmp.Or(altershield.Link(verdict.URL), result.URL)
	return Answer{Explanation: verdict.Explanation()}, nil
}

// params is the changeParamJson of an order. Rules of the server read it.
type params struct {
	Cluster    string   `json:"cluster"`
	Namespace  string   `json:"namespace"`
	Workload   string   `json:"workload"`
	Version    string   `json:"version"`
	OldVersion string   `json:"oldVersion"`
	Images     []string `json:"images"`
	OldImages  []string `json:"oldImages"`
}

func (c *serverCheck) request(q Question) altershield.SubmitAndStartRequest {
	user := cmp.Or(strings.TrimSpace(q.User), "unknown")
	return altershield.SubmitAndStartRequest{
		Base: altershield.Base{
			TenantCode:     c.options.Tenant,
			ChangeSceneKey: c.options.AdmissionScene,
			BizExecOrderID: checkOrderID(c.options.Cluster, q),
		},
		Order: altershield.Release{
			Title:     checkTitle(q.Namespace+"/"+q.Name, q.Version),
			Namespace: q.Namespace, Name: q.Name, App: q.App, User: user,
			Phase: c.options.Phase, TargetType: c.options.TargetType,
			Parameters: params{
				Cluster: c.options.Cluster, Namespace: q.Namespace, Workload: q.Name, Version: q.Version, OldVersion: q.OldVersion,
				Images: bounded(q.Images), OldImages: bounded(q.OldImages),
			},
		}.Order(),
		Executor: altershield.CutUser(user),
	}
}

// checkOrderID is an order id of its own for each question: the server knows an
// id for ever, so one made of the release alone would be a duplicate when the
// release is tried again.
func checkOrderID(cluster string, q Question) string {
	id := strings.Join([]string{"adm", strings.ReplaceAll(cluster, "-", ""), string(q.RequestUID), q.Version}, "-")
	if len(id) > altershield.MaxBizExecOrderID {
		sum := sha256.Sum256([]byte(id))
		id = "adm-" + hex.EncodeToString(sum[:])
	}
	return id
}

// checkTitle cuts the name, never the version.
func checkTitle(instance, version string) string {
	const format = "Release %s %s"
	room := altershield.MaxChangeTitle - len(fmt.Sprintf(format, "", version))
	return fmt.Sprintf(format, altershield.Cut(instance, room), version)
}

// bounded is never nil: a rule of the server finds a list.
func bounded(images []string) []string {
	list := make([]string, 0, min(len(images), maxImages))
	for _, image := range images[:min(len(images), maxImages)] {
		list = append(list, altershield.Cut(image, maxImage))
	}
	return altershield.Fit(list, maxImagesJSON)
}
