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

// Package server decides what AlterShield Server is asked, when, and what its answers and verdicts lead to, by pure functions of what
// was observed and of the time. internal/altershield has its protocol, internal/verify makes the calls.
//
//	call.go         calls, their answers, and when one is made again
//	ids.go          ids of orders and entries, which an editor of a record may have copied
//	entry.go        the steps of an entry, of an order or a batch
//	order_record.go order.go
//	                the order of a release
//	batch_record.go batch_checks.go batch.go
//	                batches, and the checks that are not the server's
//	step.go         what a step of either comes to
//	ending.go       how orders and entries end
//	verdict.go      verdicts that are called back
//	condition.go awaited.go
//	                what a release says of the server, and what it waits for
package server
