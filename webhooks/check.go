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
	orders "github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Checker decides whether a version may be released.
type Checker interface {
	// Check answers before the deadline of the context. An error means that there is
	// no answer.
	Check(ctx context.Context, q Question) (Answer, error)
}

// Question describes a release to a Checker.
type Question struct {
	// RequestUID is the UID of one call of the webhook. RequestUID and Version together
	// are unique.
	RequestUID types.UID
	// Kind of the workload in lower case, as in messages.
	Kind string
	// Name is metadata.generateName if the API server has not generated a name yet.
	Namespace, Name string
	// App is the application of the workload.
	App string
	// User is the name of the user who releases.
	User string
	// Release is the number of the release that this one follows, as stored;
	// empty when there is none.
	Release string
	// OldVersion and OldImages are empty when the workload is being created.
	Version, OldVersion string
	Images, OldImages   []string
	// Annotations of the workload in the request.
	Annotations map[string]string

	// of is the kind of the workload.
	of workload.Kind
	// uid is the UID of the workload in the request; empty when it is being created.
	uid types.UID
	// stored: a workload with this UID is stored.
	stored bool
}

// Answer answers a Question.
type Answer struct {
	// Passes: the version may be released.
	Passes bool
	// Explanation of an answer that does not pass: one line with the server's message and link.
	Explanation string
}

// ServerCheckOptions configure the questions to the server.
type ServerCheckOptions struct {
	// Registration has the AdmissionScene, without which there is no admission check.
	// Its other fields default to the registration of a new server.
	altershield.Registration
	// Cluster identifies the cluster on the server.
	Cluster string
}

// NewServerCheck returns a Checker that asks AlterShield Server, or nil without a client or
// a scene.
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
	// serverGrace is how much longer than our own limit the server's limit is. The server
	// answers a check that reaches its limit as passed, so our limit must end first.
	serverGrace = time.Second
	// maxExplained is the length of the server's message in an explanation, in bytes. It
	// leaves room for the link.
	maxExplained = 768
	// maxImages is the number of images sent to the server; maxImage is the length of an
	// image in bytes.
	maxImages, maxImage = 100, 512
	// maxImagesJSON is the size of each list of images in bytes. Both fit into a column of
	// the server's database.
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

// params is the changeParamJson of an order, which the rules of the server read.
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
	link, parent, _ := orders.OriginOf(q.Annotations)
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
			Origin: altershield.Origin{ChangeURL: link, ParentOrderInfo: (*altershield.ParentOrder)(parent)},
			Parameters: params{
				Cluster: c.options.Cluster, Namespace: q.Namespace, Workload: q.Name, Version: q.Version, OldVersion: q.OldVersion,
				Images: bounded(q.Images), OldImages: bounded(q.OldImages),
			},
		}.Order(),
		Executor: altershield.CutUser(user),
	}
}

// checkOrderID returns a new order id for each question. The server keeps ids for ever and
// refuses duplicates, so a repeated release needs another id.
func checkOrderID(cluster string, q Question) string {
	id := strings.Join([]string{"adm", strings.ReplaceAll(cluster, "-", ""), string(q.RequestUID), q.Version}, "-")
	if len(id) > altershield.MaxBizExecOrderID {
		sum := sha256.Sum256([]byte(id))
		id = "adm-" + hex.EncodeToString(sum[:])
	}
	return id
}

// checkTitle returns the title of an order. It cuts the name, never the version.
func checkTitle(instance, version string) string {
	const format = "Release %s %s"
	room := altershield.MaxChangeTitle - len(fmt.Sprintf(format, "", version))
	return fmt.Sprintf(format, altershield.Cut(instance, room), version)
}

// bounded cuts a list of images. The result is never nil, so that rules of the server find a list.
func bounded(images []string) []string {
	list := make([]string, 0, min(len(images), maxImages))
	for _, image := range images[:min(len(images), maxImages)] {
		list = append(list, altershield.Cut(image, maxImage))
	}
	return altershield.Fit(list, maxImagesJSON)
}
